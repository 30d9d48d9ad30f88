"""Folds for cross-fitting: queries of one cluster together, and kinds shared out evenly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from model_store.errors import CalibrationError

_ATOL, _RTOL = 1e-8, 1e-5
"""By how much spreads may differ and count as equal, as `numpy.isclose` has it."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def stratified_folds(
    kinds: NDArray[np.generic], clusters: Integers, n_folds: int, seed: int
) -> Iterator[tuple[Integers, Integers]]:
    """Yield the rows that are kept and those that are left out, for each fold.

    The folds are those of scikit-learn's ``StratifiedGroupKFold`` with shuffling, which takes seven
    times as long.

    Parameters
    ----------
    kinds : (N,) what each fold shall hold equal shares of.
    clusters : (N,) those of one cluster are in one fold.
    seed : of the order of clusters that hold as many of each kind.

    Raises
    ------
    CalibrationError : there are fewer clusters than folds.
    """
    _, of_kind, n_of_kind = np.unique(kinds, return_inverse=True, return_counts=True)
    _, of_cluster = np.unique(clusters, return_inverse=True)
    n_clusters = int(of_cluster.max()) + 1
    if n_clusters < n_folds:
        raise CalibrationError(
            f"The calibration queries are of {n_clusters} groups; at least {n_folds} are needed, "
            "to fit to some and measure on others."
        )
    holds = np.zeros((n_clusters, len(n_of_kind)))
    np.add.at(holds, (of_cluster, of_kind), 1)
    order = np.arange(n_clusters)
    np.random.RandomState(seed).shuffle(order)
    order = order[np.argsort(-np.std(holds[order], axis=1), kind="stable")]
    fold_of_cluster = np.empty(n_clusters, dtype=np.int64)
    fold_of_cluster[order] = _shared_out(holds[order], n_of_kind, n_folds)
    folds = fold_of_cluster[of_cluster]
    for fold in range(n_folds):
        yield np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)


def _shared_out(holds: Floats, n_of_kind: Integers, n_folds: int) -> list[int]:
    """Give each cluster in turn to the fold where it leaves the kinds most evenly spread.

    Of folds where that is equal, to the first of the smallest.

    Parameters
    ----------
    holds : (C, K) how many of each kind each cluster holds.
    n_of_kind : (K,) in all.
    """
    # `counts[i, j]` are those of fold j if the cluster is given to fold i.
    counts = np.zeros((n_folds, n_folds, len(n_of_kind)))
    given = np.arange(n_folds)
    sizes = [0.0] * n_folds
    found = []
    for of_cluster, size in zip(holds, holds.sum(axis=1).tolist(), strict=True):
        counts[given, given] += of_cluster
        shares = counts / n_of_kind
        apart = shares - np.add.reduce(shares, axis=1, keepdims=True) / n_folds
        spreads = np.sqrt(np.add.reduce(apart * apart, axis=1) / n_folds)
        best = _smallest((np.add.reduce(spreads, axis=1) / len(n_of_kind)).tolist(), sizes)
        counts[given, given] -= of_cluster
        counts[:, best] += of_cluster
        sizes[best] += size
        found.append(best)
    return found


def _smallest(spreads: list[float], sizes: list[float]) -> int:
    """Return the fold of the smallest spread; of about equal ones, that of the smallest size."""
    best = 0
    for fold in range(1, len(spreads)):
        change = spreads[fold] - spreads[best]
        is_equal = abs(change) <= _ATOL + _RTOL * spreads[best]
        if change < 0 or (is_equal and sizes[fold] < sizes[best]):
            best = fold
    return best
