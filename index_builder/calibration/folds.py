"""Folds for cross-fitting: queries of one cluster together, and kinds shared out evenly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from model_store.errors import CalibrationError

N_FOLDS = 5

Rows = NDArray[np.int64]


def stratified_folds(
    kinds: NDArray[np.generic], clusters: NDArray[np.int64], seed: int
) -> Iterator[tuple[Rows, Rows]]:
    """Yield the rows that are kept and those that are left out, for each fold.

    Parameters
    ----------
    kinds : (N,) what each fold shall hold equal shares of.
    clusters : (N,) those of one cluster are in one fold.

    Raises
    ------
    CalibrationError : there are fewer clusters than folds.
    """
    from sklearn.model_selection import StratifiedGroupKFold  # noqa: PLC0415 - slow

    n_clusters = len(np.unique(clusters))
    if n_clusters < N_FOLDS:
        raise CalibrationError(
            f"The calibration queries are of {n_clusters} groups; at least {N_FOLDS} are needed, "
            "to fit to some and measure on others."
        )
    folds = StratifiedGroupKFold(N_FOLDS, shuffle=True, random_state=seed)
    yield from folds.split(kinds, kinds, clusters)
