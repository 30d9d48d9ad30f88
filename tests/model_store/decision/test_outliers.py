from __future__ import annotations

import numpy as np
import pytest

from model_store.decision import OutlierDetector
from model_store.decision.outliers import unit_rows

RNG = np.random.default_rng(0)


def detector(rank: int = 4, n_features: int = 9, n_references: int = 40) -> OutlierDetector:
    basis = np.linalg.qr(RNG.standard_normal((n_features, rank)))[0].astype(np.float32)
    centre = (RNG.standard_normal(n_features) / 10).astype(np.float32)
    references = (RNG.standard_normal((n_references, rank)) / 3).astype(np.float32)
    return OutlierDetector(centre, basis, references)


def test_is_the_distance_to_the_nearest_reference_in_the_whole_space() -> None:
    fitted = detector()
    features = RNG.standard_normal((7, 9)).astype(np.float32)
    # The references as points of the whole space, inside the subspace.
    points = fitted.references @ fitted.basis.T + fitted.centre
    for row, got in zip(unit_rows(features), fitted.distances(features), strict=True):
        expected = np.linalg.norm(points - row, axis=1).min()
        assert got == pytest.approx(expected, rel=1e-4)


def test_length_does_not_matter_but_direction_does() -> None:
    fitted = detector()
    features = RNG.standard_normal((3, 9)).astype(np.float32)
    near = fitted.distances(features)
    np.testing.assert_allclose(fitted.distances(features * 7), near, rtol=1e-4)
    assert not np.allclose(fitted.distances(-features), near, rtol=0.01)


def test_no_features_at_all_are_finite() -> None:
    assert np.isfinite(detector().distances(np.zeros((1, 9), dtype=np.float32))).all()


def test_parts_that_do_not_fit_are_refused() -> None:
    fitted = detector()
    with pytest.raises(ValueError, match="does not go with"):
        OutlierDetector(fitted.centre[1:], fitted.basis, fitted.references)
    with pytest.raises(ValueError, match="does not go with"):
        OutlierDetector(fitted.centre, fitted.basis, fitted.references[:, 1:])
