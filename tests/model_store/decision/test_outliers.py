from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from model_store.decision import OUTLIER_SIGNALS, OutlierDetector, OutlierFusion
from model_store.decision.outliers import averaged_features, unit_rows
from model_store.encoder.contract import Embeddings
from model_store.sphere import spherical_variance

RNG = np.random.default_rng(0)


def detector(rank: int = 4, n_features: int = 9, n_references: int = 40) -> OutlierDetector:
    directions = unit_rows(RNG.standard_normal((n_references, 3)).astype(np.float32))
    return OutlierDetector(
        n_averaged=1,
        centre=(RNG.standard_normal(n_features) / 10).astype(np.float32),
        basis=np.linalg.qr(RNG.standard_normal((n_features, rank)))[0].astype(np.float32),
        references=(RNG.standard_normal((n_references, rank)) / 3).astype(np.float32),
        label_means=(RNG.standard_normal((5, rank)) / 3).astype(np.float32),
        whitening=np.tril(RNG.uniform(1, 2, (rank, rank))).astype(np.float32),
        residual_variance=0.04,
        length_centre=1.0,
        length_scale=0.3,
        directions=directions,
    )


def queries(n: int) -> Embeddings:
    mean, variance = RNG.standard_normal((n, 3)), RNG.uniform(0.1, 1, (n, 3))
    features = RNG.standard_normal((n, 9))
    return Embeddings(*(array.astype(np.float32) for array in (mean, variance, features)))


def signal(fitted: OutlierDetector, embeddings: Embeddings, name: str) -> np.ndarray:
    return fitted.signals(embeddings)[:, OUTLIER_SIGNALS.index(name)]


def test_feature_distance_is_that_to_the_nearest_reference_in_the_whole_space() -> None:
    fitted, asked = detector(), queries(7)
    asked.features[0] = 0  # without a direction: the origin
    # The references as points of the whole space, inside the subspace.
    points = fitted.references @ fitted.basis.T + fitted.centre
    expected = [np.linalg.norm(points - row, axis=1).min() for row in unit_rows(asked.features)]
    got = np.exp(signal(fitted, asked, "log_feature_distance"))
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_distances_are_reckoned_in_single_precision_for_half_the_time() -> None:
    fitted = detector()
    for matrix in (fitted._axes, fitted._axes_of_centre, fitted._compared, fitted._to_means):
        assert matrix.dtype == np.float32


def test_mahalanobis_is_that_of_a_gaussian_with_white_noise_outside_the_subspace() -> None:
    fitted, asked = detector(), queries(7)
    rank = fitted.basis.shape[1]
    outside = np.linalg.qr(np.c_[fitted.basis, RNG.standard_normal((9, 9 - rank))])[0][:, rank:]
    within = fitted.basis @ np.linalg.inv(fitted.whitening @ fitted.whitening.T) @ fitted.basis.T
    precision = np.linalg.inv(within + fitted.residual_variance * outside @ outside.T)
    means = fitted.label_means @ fitted.basis.T + fitted.centre
    for row, got in zip(
        unit_rows(asked.features), signal(fitted, asked, "log_mahalanobis"), strict=True
    ):
        squared = [(row - mean) @ precision @ (row - mean) for mean in means]
        assert np.exp(got) == pytest.approx(min(squared) ** 0.5, rel=1e-3)


def test_the_other_two_are_the_embedding_s_own() -> None:
    fitted, asked = detector(), queries(5)
    cosines = unit_rows(asked.mean) @ fitted.directions.T
    np.testing.assert_allclose(
        np.exp(signal(fitted, asked, "log_embedding_distance")),
        1 - cosines.max(axis=1) + 1e-4,
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        np.exp(signal(fitted, asked, "log_uncertainty")),
        spherical_variance(asked.mean, asked.variance),
        rtol=1e-6,
    )


def test_features_are_as_alien_too_short_as_too_long() -> None:
    fitted, asked = detector(), queries(3)
    unit = unit_rows(asked.features)
    got = [
        signal(fitted, replace(asked, features=np.exp(1.0 + d) * unit), "length_deviation")
        for d in (np.float32(0), np.float32(0.6), np.float32(-0.6))
    ]
    np.testing.assert_allclose(got[0], 0, atol=1e-5)
    np.testing.assert_allclose(got[1], math.log(1 + (0.6 / 0.3) ** 2) / 2, rtol=1e-4)
    np.testing.assert_allclose(got[2], got[1], rtol=1e-4)


def test_the_rest_looks_at_the_direction_of_the_features_alone() -> None:
    fitted, asked = detector(), queries(3)
    near = fitted.signals(asked)
    longer = fitted.signals(replace(asked, features=asked.features * 7))
    assert not np.allclose(longer[:, -1], near[:, -1], rtol=0.01)
    turned = fitted.signals(replace(asked, features=-asked.features))
    np.testing.assert_allclose(longer[:, :-1], near[:, :-1], rtol=1e-4, atol=1e-4)
    assert not np.allclose(turned[:, :2], near[:, :2], rtol=0.01)


def test_of_averaged_features_it_sees_the_means_of_neighbours_and_not_what_is_left_over() -> None:
    fitted, asked = detector(), queries(3)
    noise = RNG.standard_normal(asked.features.shape)
    pairs = np.stack([asked.features + noise, asked.features - noise], axis=2).reshape(3, -1)
    wider = replace(asked, features=np.c_[pairs, np.full(3, 9)].astype(np.float32))
    got = replace(fitted, n_averaged=2).signals(wider)
    np.testing.assert_allclose(got, fitted.signals(asked), rtol=1e-4, atol=1e-4)
    assert averaged_features(wider.features, 2).dtype == np.float32


def test_of_no_images_there_are_no_signals() -> None:
    assert detector().signals(queries(0)).shape == (0, len(OUTLIER_SIGNALS))


def test_no_features_and_no_variance_at_all_are_finite() -> None:
    none = np.zeros((1, 9), dtype=np.float32)
    nothing = Embeddings(detector().directions[:1], none[:, :3], none)
    assert np.isfinite(detector().signals(nothing)).all()


@pytest.mark.parametrize("part", ["centre", "references", "label_means", "whitening"])
def test_parts_that_do_not_fit_are_refused(part: str) -> None:
    fitted = detector()
    with pytest.raises(ValueError, match="does not go with"):
        replace(fitted, **{part: getattr(fitted, part)[..., 1:]})


def fusion(n: int = 30) -> tuple[OutlierFusion, np.ndarray]:
    """A fusion of three signals with values (3, n) at which their p-values are known."""
    levels = np.sort(RNG.standard_normal((3, n)), axis=1)
    surprisals = np.tile(-np.log(np.arange(n, 0, -1) / (n + 1)), (3, 1))
    weights, slopes = np.array([0.5, 0.3, 0.2]), np.array([2.0, 1.0, 3.0])
    return OutlierFusion(weights, levels, surprisals, slopes), levels


def test_the_outlier_score_is_the_harmonic_mean_of_p_values() -> None:
    fitted, levels = fusion()
    asked = np.stack([RNG.permutation(row) for row in levels], axis=1)
    p_values = (levels[None] >= asked[:, :, None]).sum(axis=2) / (levels.shape[1] + 1)
    harmonic = 1 / (fitted.weights / p_values).sum(axis=1)
    np.testing.assert_allclose(np.exp(-fitted(asked)), harmonic)


def test_beyond_all_that_was_seen_the_outlier_score_goes_on_growing() -> None:
    fitted, levels = fusion()
    ordinary = np.median(levels, axis=1)
    steps = np.tile(ordinary, (3, 1))
    steps[:, 0] = levels[0, -1] + np.array([100, 1000, 1e6])
    scores = fitted(steps)
    np.testing.assert_allclose(np.diff(scores), 2 * np.diff(steps[:, 0]))


@given(
    start=arrays(float, 3, elements=st.floats(-4, 4)),
    growth=arrays(float, 3, elements=st.floats(0, 1e4)),
)
def test_a_signal_that_grows_makes_no_query_less_alien(
    start: np.ndarray, growth: np.ndarray
) -> None:
    fitted, _ = fusion()
    before, after = fitted(np.stack([start, start + growth]))
    assert after >= before - 1e-9


def test_a_signal_without_weight_never_drowns_the_others() -> None:
    fitted = replace(fusion()[0], weights=np.array([1.0, 0, 0]))
    quiet = np.zeros((1, 3))
    loud = np.array([[0.0, 500.0, 200.0]])
    np.testing.assert_allclose(fitted(loud), fitted(quiet))


def test_a_score_does_not_depend_on_the_batch() -> None:
    fitted, _ = fusion()
    asked = RNG.standard_normal((6, 3)) * 3
    np.testing.assert_array_equal(fitted(asked), np.r_[*(fitted(row[None]) for row in asked)])


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": np.ones(2) / 2},
        {"levels": np.ones((3, 29))},
        {"surprisals": np.ones((3, 31))},
        {"levels": np.ones((2, 30)), "surprisals": np.ones((2, 30))},
        {"tail_slopes": np.ones(2)},
    ],
)
def test_tables_that_do_not_go_together_are_refused(changes: dict[str, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="does not go with"):
        replace(fusion()[0], **changes)
