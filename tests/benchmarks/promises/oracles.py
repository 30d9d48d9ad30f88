"""Real worlds whose calibration is told more than it can know, to bound what any could reach."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SAME_LABELS, OTHER_LABELS = "absent labels known", "other labels withheld"

ORACLES = (
    *(f"{name}, {told}" for name in ("Caltech-101", "CUB") for told in (SAME_LABELS, OTHER_LABELS)),
    f"Fashion-MNIST, {SAME_LABELS}",
)
"""Worlds that are told more than hidden labels can tell: other images of the very labels that are
absent, or images of other absent labels. They bound what any calibration could reach."""


def told(
    labels: NDArray[np.str_],
    absent: NDArray[np.int64],
    generator: np.random.Generator,
    *,
    same_labels: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Withhold half of the absent rows, of the same labels as those that are left or of others."""
    rows = generator.permutation(absent)
    if same_labels:
        known = np.arange(len(rows)) < len(rows) // 2
    else:
        names = generator.permutation(np.unique(labels[rows]))
        known = np.isin(labels[rows], names[: len(names) // 2])
    return rows[known], rows[~known]
