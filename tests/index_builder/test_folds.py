"""Folds for cross-fitting are scikit-learn's, to the row."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import StratifiedGroupKFold

from index_builder.calibration.folds import stratified_folds
from model_store.errors import CalibrationError


@pytest.mark.parametrize("largest", [1, 3, 40])
@pytest.mark.parametrize("n_kinds", [1, 2, 4])
def test_they_are_those_of_scikit_learn(n_kinds: int, largest: int) -> None:
    generator = np.random.default_rng([n_kinds, largest])
    for seed in range(3):
        kinds = generator.choice(n_kinds, 300, p=generator.dirichlet(np.ones(n_kinds) * 5))
        clusters = np.sort(generator.permutation(900)[: 300 // largest]).repeat(largest)
        clusters = generator.permutation(np.r_[clusters, np.arange(900, 1200 - len(clusters))])
        reference = StratifiedGroupKFold(5, shuffle=True, random_state=seed)
        wanted = reference.split(kinds, kinds, clusters)
        for found, expected in zip(stratified_folds(kinds, clusters, 5, seed), wanted, strict=True):
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[1], expected[1])


def test_fewer_clusters_than_folds_are_refused() -> None:
    with pytest.raises(CalibrationError, match=r"of 4 groups; at least 5"):
        next(stratified_folds(np.zeros(60), np.arange(60) % 4, 5, 0))
