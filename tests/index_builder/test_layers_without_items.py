"""Items as queries of an encoder whose last layer was fitted to these items."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.calibration.calibrate import calibrate_gallery
from index_builder.calibration.fit_again import _layers_again, _little_changed, fit_again
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.item_queries import (
    CrossFittedLayers,
    DetectorFolds,
    cross_fitted_items,
)
from index_builder.calibration.kept_queries import KeptVectors, as_vectors
from index_builder.calibration.layer_gallery import ItemVectors
from index_builder.calibration.retrieval import fit_label_folds
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.splits import QuerySet
from index_builder.whitening import learned_whitening
from model_store.bundles.kept_queries import CalibrationInputs, ItemFeatures
from model_store.decision import Calibration
from model_store.encoder.contract import Embeddings
from model_store.errors import CalibrationError
from model_store.gallery import FaissGallery, NewItem, Thumbnail, write_faiss_gallery
from model_store.gallery.filters.selection import MaskedRows

N_LABELS, N_FEATURES, DIM, SEED = 60, 160, 48, 0
WORLD = np.random.default_rng(5)
LABELS = np.repeat(np.arange(N_LABELS), 2)
NOISE = np.linspace(0.3, 2.2, N_FEATURES) * WORLD.normal(size=(len(LABELS), N_FEATURES))
CENTRES = 0.7 * WORLD.normal(size=(N_LABELS, N_FEATURES))
FEATURES = (CENTRES[LABELS] + NOISE).astype(np.float32)
WEIGHT = learned_whitening([FEATURES], LABELS, DIM)
IDS = tuple(f"item-{number:03d}" for number in range(len(LABELS)))
ENCODER = KeptVectors("e" * 64, DIM, N_FEATURES)


def embedded(weight: NDArray[np.floating]) -> Embeddings:
    mean = (FEATURES @ weight.T).astype(np.float32)
    return Embeddings(mean, np.full_like(mean, 0.01), FEATURES)


def units(weight: NDArray[np.floating]) -> NDArray[np.float32]:
    mean = embedded(weight).mean
    unit: NDArray[np.float32] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return unit


@pytest.fixture
def gallery(tmp_path: Path) -> FaissGallery:
    picture = Thumbnail(b"-", "image/png")
    names = [f"label-{label:02d}" for label in LABELS]
    items = [NewItem(*one, {}, picture) for one in zip(IDS, names, strict=True)]
    write_faiss_gallery(tmp_path, embedded(WEIGHT), items, ENCODER.fingerprint)
    return FaissGallery(tmp_path)


@pytest.fixture
def images() -> LabelledImages:
    names = tuple(f"label-{label:02d}" for label in LABELS)
    return as_vectors(IDS, names, IDS, None, embedded(WEIGHT))


def recall_without_each_item() -> float:
    """Recall at 1 if each item is searched for with a layer that was never fitted to it."""
    right = []
    for item in range(len(LABELS)):
        others = np.arange(len(LABELS)) != item
        directions = units(learned_whitening([FEATURES[others]], LABELS[others], DIM))
        similarities = np.where(others, directions @ directions[item], -2)
        right.append(LABELS[similarities.argmax()] == LABELS[item])
    return float(np.mean(right))


def recall(calibration: Calibration) -> float:
    """Recall at 1 of the calibration queries."""
    found: float = calibration.report["cross_fitted"]["recall_at_1"]
    return found


def test_recall_of_items_is_that_of_layers_that_were_not_fitted_to_them(
    gallery: FaissGallery, images: LabelledImages, tmp_path: Path
) -> None:
    """With pairs, a layer that was fitted to an item makes the item's partner similar to it."""
    shuffled = images.at(np.random.default_rng(SEED).permutation(len(images)))
    training = images.at(np.arange(1, len(images)))  # one is for validation
    queries = cross_fitted_items(ENCODER, images, training, shuffled, WEIGHT, SEED)
    nothing = QuerySet(images.at([]), images.at([]), None)
    config = CalibrationConfig()
    known = ENCODER, gallery, shuffled, nothing, SEED
    inputs = GalleryQueries(*known, are_views=False, unseen=True, items=queries)
    fitted = calibrate_gallery(inputs, config, kept_in=tmp_path)
    wanted = recall_without_each_item()
    assert 0.2 < wanted < 0.6
    assert recall(fitted) == pytest.approx(wanted, abs=0.06)
    kept = CalibrationInputs.load(tmp_path)
    assert kept is not None
    assert kept.not_fitted == IDS[:1]
    again = fit_again(tmp_path, gallery, fitted, config).calibration
    assert recall(again) == pytest.approx(wanted, abs=0.06)
    assert again.report["n_absent"] == fitted.report["n_absent"] == len(LABELS)


def test_labels_with_few_items_are_no_queries_if_some_features_are_not_stored(
    images: LabelledImages, tmp_path: Path
) -> None:
    """The other items of such a label cannot be embedded without the query."""
    picture = Thumbnail(b"-", "image/png")
    names = ["many" if n < 6 else name for n, name in enumerate(images.labels)]
    items = [NewItem(*one, {}, picture) for one in zip(IDS, names, strict=True)]
    write_faiss_gallery(tmp_path, embedded(WEIGHT), items, ENCODER.fingerprint)
    gallery, queries = FaissGallery(tmp_path), replace(images, labels=tuple(names))
    assert _little_changed(queries, (), gallery).tolist() == [*range(6)]
    assert _little_changed(queries, IDS[8:9], gallery).tolist() == [*range(6), 8]


def test_refit_of_pairs_without_some_features_says_what_to_do(
    gallery: FaissGallery, images: LabelledImages, tmp_path: Path
) -> None:
    """Every label has few items, so no query would remain."""
    queries = cross_fitted_items(ENCODER, images, images, images, WEIGHT, SEED)
    nothing = QuerySet(images.at([]), images.at([]), None)
    config = CalibrationConfig()
    known = ENCODER, gallery, images, nothing, SEED
    inputs = GalleryQueries(*known, are_views=False, unseen=True, items=queries)
    fitted = calibrate_gallery(inputs, config, kept_in=tmp_path)
    stored = ItemFeatures.load(tmp_path)
    assert stored is not None
    assert len(stored) == len(images)
    replace(stored.at(np.arange(100)), share=100 / len(images)).save(tmp_path)
    with pytest.raises(CalibrationError, match=r"labels of few items.*--queries FILE"):
        fit_again(tmp_path, gallery, fitted, config)


def test_outlier_detectors_compare_embeddings_of_the_layers(images: LabelledImages) -> None:
    layers = CrossFittedLayers.of(images, FEATURES, np.arange(len(images)), WEIGHT, SEED)
    of_items = layers.of_items(IDS)
    detectors = DetectorFolds.of(
        embedded(WEIGHT), LABELS, of_items, len(layers.weights), layers.weights
    ).detectors
    for fold, (detector, weight) in enumerate(zip(detectors, layers.weights, strict=True)):
        expected = units(weight)[of_items != fold]
        np.testing.assert_allclose(detector.directions, expected, atol=1e-6)
    of_labels = layers.of_labels(images.labels)
    folds = fit_label_folds(embedded(WEIGHT), images.labels, SEED, layers=layers)
    assert folds.fold_of == layers.fold_of_label
    for fold, (known, weight) in enumerate(zip(folds.detectors, layers.weights, strict=True)):
        assert known is not None
        np.testing.assert_allclose(known.directions, units(weight)[of_labels != fold], atol=1e-6)


def test_a_removed_item_is_left_out_of_its_own_layer_only(images: LabelledImages) -> None:
    rest = images.at(np.arange(1, len(images)))
    moved = FEATURES.copy()
    moved[0] += 3
    other = as_vectors(
        IDS[:1], images.labels[:1], IDS[:1], None, replace(embedded(WEIGHT), features=moved).at([0])
    )
    before, after, reviewed = (
        _layers_again(ENCODER, rest, removed, not_fitted, SEED)
        for removed, not_fitted in ((images.at([0]), ()), (other, ()), (other, IDS[:1]))
    )
    same = [
        np.allclose(*weights, atol=1e-4)
        for weights in zip(before.weights, after.weights, strict=True)
    ]
    own, of_label = before.fold_of_item[IDS[0]], before.fold_of_label[images.labels[0]]
    assert np.flatnonzero(same).tolist() == sorted([own, of_label])
    assert IDS[0] not in reviewed.fold_of_item
    some = _layers_again(ENCODER, images, images.at([]), IDS[4:9], SEED)
    assert some.not_fitted == IDS[4:9]


def test_a_gallery_that_a_layer_embeds_is_searched_like_any_other(
    gallery: FaissGallery, images: LabelledImages
) -> None:
    layers = CrossFittedLayers.of(images, FEATURES, np.arange(len(images)), WEIGHT, SEED)
    weight, known = layers.weights[3], np.arange(10, len(IDS))
    ids = (*(IDS[row] for row in known), "removed")
    vectors = ItemVectors.of(gallery, ids, FEATURES[[*known, 0]])
    seen = vectors.embedded(weight)
    expected = units(weight)
    expected[:10] = units(WEIGHT)[:10]  # their features are unknown
    rows = np.arange(len(IDS))
    np.testing.assert_allclose(seen.directions(rows), expected, atol=1e-6)
    assert seen.labels == gallery.labels
    allowed = np.zeros(len(IDS), dtype=bool)
    allowed[::3] = True
    for mask in (np.ones(len(IDS), dtype=bool), allowed):
        found = seen.candidates(expected[:5], 7, MaskedRows(mask.copy()))
        similarities = np.where(mask, expected[:5] @ expected.T, -2)
        np.testing.assert_array_equal(found.rows, np.argsort(-similarities, axis=1)[:, :7])
        np.testing.assert_allclose(
            found.similarities, -np.sort(-similarities, axis=1)[:, :7], atol=1e-6
        )
    everything = seen.candidates(expected[:5], 7).rows
    np.testing.assert_array_equal(everything[:, 0], np.arange(5))
