"""Folds for cross-fitting."""

from __future__ import annotations

import numpy as np
import pytest

from index_builder.calibration.folds import N_FOLDS, stratified_folds
from model_store.errors import CalibrationError


def test_each_row_is_left_out_once_with_its_cluster() -> None:
    kinds, clusters = np.arange(300) % 2, np.arange(300) // 3
    folds = list(stratified_folds(kinds, clusters, 0))
    assert len(folds) == N_FOLDS
    assert np.array_equal(np.sort(np.concatenate([out for _, out in folds])), np.arange(300))
    for kept, left_out in folds:
        assert len(kept) + len(left_out) == 300
        assert not set(clusters[kept]) & set(clusters[left_out])
        assert np.mean(kinds[left_out]) == pytest.approx(0.5, abs=0.05)


def test_fewer_clusters_than_folds_are_refused() -> None:
    with pytest.raises(CalibrationError, match=r"of 4 groups; at least 5"):
        next(stratified_folds(np.zeros(60), np.arange(60) % 4, 0))
