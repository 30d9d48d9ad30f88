from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.calibration.item_queries import CrossFittedLayers, ItemQueries
from index_builder.calibration.kept_queries import as_vectors
from index_builder.datasets import LabelledImages
from index_builder.whitening import learned_whitening
from model_store.encoder.contract import Embeddings
from model_store.gallery import FaissGallery, NewItem, write_faiss_gallery
from tests.laws.gallery_laws import new_items

N_LABELS, N_FEATURES, DIM = 30, 160, 60
WORLD = np.random.default_rng(5)
CENTRES = WORLD.normal(size=(2 * N_LABELS, N_FEATURES))
SPREAD = np.linspace(0.3, 2.5, N_FEATURES)

Floats = NDArray[np.float32]


def drawn(labels: NDArray[np.int64]) -> Floats:
    """Features of new images with these labels."""
    noise = SPREAD * WORLD.normal(size=(len(labels), N_FEATURES))
    return (CENTRES[labels] + noise).astype(np.float32)


def collection(labels: NDArray[np.int64], features: Floats) -> LabelledImages:
    ids = tuple(f"item-{n}" for n in range(len(labels)))
    names = tuple(f"label-{n}" for n in labels)
    return as_vectors(ids, names, ids, None, embedded(features, np.eye(DIM, N_FEATURES)))


def embedded(features: Floats, weight: NDArray[np.floating[Any]]) -> Embeddings:
    mean = (features @ weight.T).astype(np.float32)
    return Embeddings(mean, np.full_like(mean, 0.1), features)


def nearest(queries: Floats, items: Floats, hidden: NDArray[np.bool_] | None = None) -> Floats:
    """Similarity of each query's nearest item."""
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, items)]
    similarities = units[0] @ units[1].T
    found: Floats = np.where(False if hidden is None else hidden, -2, similarities).max(1)
    return found


def test_items_alone_are_as_similar_to_the_gallery_as_new_images() -> None:
    labels = np.arange(8 * N_LABELS) % N_LABELS
    features = drawn(labels)
    weight = learned_whitening([features], labels, DIM)
    images = collection(labels, features)
    layers = CrossFittedLayers.of(images, features, np.arange(len(labels)), weight, seed=0)
    served = embedded(features, weight)
    alone = layers.without_item(images.ids, served)
    unlabelled = layers.without_label(images.labels, served)
    own = np.eye(len(labels), dtype=bool)
    of_label = labels[:, None] == labels
    fresh = nearest(embedded(drawn(labels), weight).mean, served.mean)
    absent = nearest(embedded(drawn(labels + N_LABELS), weight).mean, served.mean)
    seen = nearest(served.mean, served.mean, of_label)
    of_alone = nearest(alone.mean, served.mean, own)
    of_unlabelled = nearest(unlabelled.mean, served.mean, of_label)
    assert abs(of_alone.mean() - fresh.mean()) < 0.006
    bias, of_seen = of_unlabelled.mean() - absent.mean(), seen.mean() - absent.mean()
    assert abs(bias) < 0.25 * abs(of_seen)  # a layer that has seen the label moves it away
    np.testing.assert_array_equal(alone.features, features)


def test_layers_have_not_seen_the_item_and_the_label_that_they_embed() -> None:
    labels = np.arange(6 * N_LABELS) % N_LABELS
    features = drawn(labels)
    weight = learned_whitening([features], labels, DIM)
    images, rows = collection(labels, features), np.arange(len(labels))
    groups = tuple(str(n // 2 * 2 if n < N_LABELS else n) for n in range(len(labels)))
    images = replace(images, groups=groups)
    before = CrossFittedLayers.of(images, features, rows, weight, seed=0)
    changed = features.copy()
    changed[4:6] += 3  # one group, of two labels
    after = CrossFittedLayers.of(images, changed, rows, weight, seed=0)
    asked = embedded(features, weight)
    for place in (4, 5):
        one = asked.at(np.array([place]))
        moved = [layers.without_item([images.ids[place]], one).mean for layers in (before, after)]
        np.testing.assert_allclose(moved[0], moved[1], atol=1e-4)
    of_label = np.flatnonzero(labels == 4)
    moved = [
        layers.without_label([images.labels[row] for row in of_label], asked.at(of_label)).mean
        for layers in (before, after)
    ]
    assert not np.allclose(moved[0], moved[1], atol=1e-4)  # the group has an image of another label
    changed = features.copy()
    changed[of_label] += 3
    after = CrossFittedLayers.of(images, changed, rows, weight, seed=0)
    moved[1] = after.without_label(
        [images.labels[row] for row in of_label], asked.at(of_label)
    ).mean
    np.testing.assert_allclose(moved[0], moved[1], atol=1e-4)


@pytest.fixture
def gallery(tmp_path: Path) -> FaissGallery:
    thumbnail = new_items(1)[0].thumbnail
    items = [NewItem(f"item-{n}", f"label-{n % 2}", {}, thumbnail) for n in range(5)]
    write_faiss_gallery(tmp_path, embedded(drawn(np.arange(5)), np.eye(4, N_FEATURES)), items, "e")
    return FaissGallery(tmp_path)


def test_own_rows_are_those_of_the_group_that_are_still_there(gallery: FaissGallery) -> None:
    labels = np.arange(4)
    images = replace(collection(labels, drawn(labels)), groups=("a", "b", "b", "c"))
    images = replace(images, ids=("item-0", "item-1", "item-3", "gone"))
    others = replace(images, ids=("item-0", "item-1", "item-3", "item-4"))
    nothing = embedded(drawn(labels), np.eye(4, N_FEATURES))
    items = ItemQueries(images, nothing, nothing)
    rows = items.own_rows(gallery, others)
    known = [{row for row in own if row >= 0} for own in rows.tolist()]
    assert known == [
        {gallery.row("item-0")},
        {gallery.row("item-1"), gallery.row("item-3")},
        {gallery.row("item-1"), gallery.row("item-3")},
        {gallery.row("item-4")},
    ]
