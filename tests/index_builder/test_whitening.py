from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.whitening import cross_fitted_whitenings, learned_whitening
from model_store.errors import DatasetError

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(400) % 8
SCALES = np.linspace(0.2, 4, 12)
CENTRES = GENERATOR.normal(size=(8, 12))
FEATURES = CENTRES[LABELS] + SCALES * GENERATOR.normal(size=(400, 12))
WIDE = GENERATOR.normal(size=(12, 60)) / 4
FEW, FEW_LABELS = FEATURES[:48] @ WIDE + 0.3 * GENERATOR.normal(size=(48, 60)), LABELS[:48]

Floats = NDArray[np.float64]


def whitening(features: Floats, labels: NDArray[np.int64], dim: int) -> Floats:
    """From blocks of uneven length."""
    return learned_whitening(np.array_split(features, [150, 170]), labels, dim)


def covariance_within(rows: Floats, labels: NDArray[np.int64]) -> Floats:
    centres = np.stack([rows[label == labels].mean(0) for label in range(8)])
    within = rows - centres[labels]
    covariance: Floats = within.T @ within / (len(rows) - 8)
    return covariance


def unit(rows: Floats) -> Floats:
    units: Floats = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return units


def test_whitening_makes_covariance_within_labels_the_identity() -> None:
    weight = whitening(FEATURES, LABELS, 12)
    before = covariance_within(FEATURES, LABELS)
    # W C Wᵀ = I − λ W Wᵀ for W (C + λ I) Wᵀ = I, with λ the mean eigenvalue.
    shrunk = before + before.diagonal().mean() * np.eye(12)
    np.testing.assert_allclose(weight @ shrunk @ weight.T, np.eye(12), atol=1e-10)


def test_whitening_is_the_mahalanobis_metric_in_closed_form() -> None:
    """‖W(φ − φ')‖² = (φ − φ')ᵀ M (φ − φ') with M = WᵀW, the inverse covariance, shrunk."""
    weight = whitening(FEATURES, LABELS, 12)
    covariance = covariance_within(FEATURES, LABELS)
    shrunk = covariance + covariance.diagonal().mean() * np.eye(12)
    np.testing.assert_allclose(weight.T @ weight, np.linalg.inv(shrunk), atol=1e-10)


def test_whitening_of_fewer_images_than_features_equals_the_dense_formula() -> None:
    weight = whitening(FEW, FEW_LABELS, 20)
    covariance = covariance_within(FEW, FEW_LABELS)
    values, vectors = np.linalg.eigh(covariance)
    root = vectors / np.sqrt(np.maximum(values, 0) + values.mean())
    centred = FEW - FEW.mean(0)
    _, principal = np.linalg.eigh(root.T @ centred.T @ centred @ root)
    dense = (root @ principal[:, ::-1][:, :20]).T
    np.testing.assert_allclose(weight.T @ weight, dense.T @ dense, atol=1e-8)
    np.testing.assert_allclose(np.abs(FEW @ weight.T), np.abs(FEW @ dense.T), atol=1e-6)


def test_whitening_keeps_the_directions_in_which_images_differ_most() -> None:
    whole = FEATURES @ whitening(FEATURES, LABELS, 12).T
    few = FEATURES @ whitening(FEATURES, LABELS, 5).T
    np.testing.assert_allclose(few, whole[:, :5])
    spread = whole.var(0)
    assert (spread[:-1] >= spread[1:]).all()


def test_whitening_finds_labels_that_differ_along_quiet_features() -> None:
    def nearest_is_right(rows: Floats) -> float:
        similarity = unit(rows) @ unit(rows).T
        np.fill_diagonal(similarity, -2)
        return float((LABELS[similarity.argmax(1)] == LABELS).mean())

    whitened = FEATURES @ whitening(FEATURES, LABELS, 12).T
    assert nearest_is_right(whitened) > nearest_is_right(FEATURES) + 0.05


def test_whitening_of_the_same_features_is_the_same() -> None:
    first = whitening(FEATURES, LABELS, 4)
    np.testing.assert_array_equal(first, whitening(FEATURES, LABELS, 4))
    assert (np.take_along_axis(first, np.abs(first).argmax(1)[:, None], 1) > 0).all()


def test_whitening_of_few_images_keeps_half_as_many_directions() -> None:
    weight = whitening(FEW, FEW_LABELS, 40)
    np.testing.assert_allclose(weight[:24], whitening(FEW, FEW_LABELS, 24))
    assert not weight[24:].any()
    (layer,) = cross_fitted_whitenings(FEW, FEW_LABELS, [np.array([0, 9])], weight)
    assert not layer[24:].any()
    assert np.linalg.matrix_rank(layer) == 24


def test_whitening_of_copies_keeps_the_directions_that_there_are() -> None:
    copies, labels = np.repeat(FEW[:8], 6, axis=0), np.repeat(FEW_LABELS[:8] % 2, 6)
    weight = whitening(copies, labels, 24)  # 48 rows, of rank 8
    assert np.isfinite(weight).all()
    assert np.any(weight != 0, axis=1).sum() == 8
    (layer,) = cross_fitted_whitenings(copies, labels, [np.arange(6)], weight)
    assert np.isfinite(layer).all()


@pytest.mark.parametrize("scale", [0, 1e-200])
def test_whitening_of_features_that_do_not_differ_is_refused(scale: float) -> None:
    with pytest.raises(DatasetError, match="do not differ, or are too small"):
        learned_whitening([scale * FEATURES], LABELS, 4)


def test_whitening_to_more_dimensions_than_features_is_refused() -> None:
    with pytest.raises(ValueError, match="12 features"):
        whitening(FEATURES, LABELS, 13)
    with pytest.raises(ValueError, match="hold 400 rows, the labels 401"):
        whitening(FEATURES, np.r_[LABELS, 0], 12)


@pytest.mark.parametrize(
    ("features", "labels", "dim"), [(FEATURES, LABELS, 8), (FEW, FEW_LABELS, 20)]
)
def test_cross_fitted_layer_is_the_fit_to_the_rest_turned_to_the_whole(
    features: Floats, labels: NDArray[np.int64], dim: int
) -> None:
    whole = whitening(features, labels, dim)
    folds = [np.arange(0, len(features), 9), np.flatnonzero(labels == 3)]
    layers = list(cross_fitted_whitenings(features, labels, folds, whole))
    assert len(layers) == 2
    for fold, layer in zip(folds, layers, strict=True):
        rest = np.setdiff1d(np.arange(len(features)), fold)
        alone = whitening(features[rest], labels[rest], dim)
        np.testing.assert_allclose(layer.T @ layer, alone.T @ alone, atol=1e-4)  # a rotation of it
        left, _, right = np.linalg.svd(whole @ features[rest].T @ features[rest] @ alone.T)
        np.testing.assert_allclose(layer, left @ right @ alone, atol=1e-4)  # the nearest one
        turned, unturned = unit(features[rest] @ layer.T), unit(features[rest] @ alone.T)
        served = unit(features[rest] @ whole.T)
        assert (turned * served).sum(1).mean() > 0.9
        assert (turned * served).sum(1).mean() > (unturned * served).sum(1).mean()


def test_cross_fitted_layer_has_not_seen_what_it_leaves_out() -> None:
    changed = FEATURES.copy()
    fold = np.arange(0, 400, 11)
    changed[fold] += 5
    whole = whitening(FEATURES, LABELS, 8)
    (layer,) = cross_fitted_whitenings(FEATURES, LABELS, [fold], whole)
    (other,) = cross_fitted_whitenings(changed, LABELS, [fold], whole)
    np.testing.assert_allclose(layer, other, atol=1e-5)
