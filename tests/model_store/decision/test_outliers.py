from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_store.decision import OUTLIER_SIGNALS, OutlierDetector
from model_store.decision.outliers import averaged_features, unit_rows
from model_store.encoder.contract import Embeddings

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


def test_the_last_is_the_embedding_s_own() -> None:
    fitted, asked = detector(), queries(5)
    cosines = unit_rows(asked.mean) @ fitted.directions.T
    np.testing.assert_allclose(
        np.exp(signal(fitted, asked, "log_embedding_distance")),
        1 - cosines.max(axis=1) + 1e-4,
        rtol=1e-4,
    )


def test_signals_look_at_the_direction_of_the_features_alone() -> None:
    fitted, asked = detector(), queries(3)
    near = fitted.signals(asked)
    turned = fitted.signals(replace(asked, features=-asked.features))
    for scale in (7, 0.01):
        scaled = fitted.signals(replace(asked, features=asked.features * np.float32(scale)))
        np.testing.assert_allclose(scaled, near, rtol=1e-4, atol=1e-4)
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


def test_the_outlier_score_is_the_product_of_three_distances() -> None:
    fitted, asked = detector(), queries(6)
    distances = np.exp(fitted.signals(asked))
    np.testing.assert_allclose(np.exp(fitted.scores(asked)), distances.prod(axis=1))


def test_a_score_does_not_depend_on_the_batch() -> None:
    fitted, asked = detector(), queries(6)
    alone = [fitted.scores(asked.at(np.array([row])))[0] for row in range(6)]
    np.testing.assert_allclose(fitted.scores(asked), alone, rtol=1e-5)


def test_query_at_the_mean_of_its_label_has_a_distance() -> None:
    """Rounding makes some squared distances negative."""
    fitted = replace(
        detector(),
        centre=np.zeros(9, np.float32),
        label_means=unit_rows(RNG.standard_normal((5, 4)).astype(np.float32)),
    )
    means = (fitted.label_means @ np.linalg.inv(fitted.whitening.T) * 1) @ fitted.basis.T
    at_means = fitted.label_means @ fitted.basis.T
    for features in (means, at_means):
        asked = replace(queries(5), features=features.astype(np.float32))
        assert np.isfinite(fitted.signals(asked)).all()
