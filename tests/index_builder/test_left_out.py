from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from index_builder.calibration.left_out import pictures
from laws.gallery_laws import new_items

from index_builder.calibration import left_out_queries
from index_builder.datasets.images import LabelledImages, from_arrays
from index_builder.observation import observe_left_out
from model_store.decision import label_means
from model_store.encoder import Embeddings
from model_store.gallery import FaissGallery, NewItem, write_faiss_gallery
from model_store.sphere import unit_direction

N, N_LABELS, DIM = 60, 4, 5
RNG = np.random.default_rng(0)
LABELS = [f"label-{number % N_LABELS}" for number in range(N - 1)] + ["alone"]
IDS = tuple(f"x-{7 * number % N:02d}" for number in range(N))
MEAN = RNG.standard_normal((N, DIM)).astype(np.float32)
EMBEDDINGS = Embeddings(
    MEAN,
    np.full((N, DIM), 0.01, dtype=np.float32),
    RNG.standard_normal((N, 30)).astype(np.float32),
)
DIRECTIONS = unit_direction(MEAN).astype(np.float64)


@pytest.fixture
def gallery(tmp_path: Path) -> FaissGallery:
    """Items in another order than the images."""
    thumbnail = new_items(1)[0].thumbnail
    items = [NewItem(name, label, {}, thumbnail) for name, label in zip(IDS, LABELS, strict=True)]
    write_faiss_gallery(tmp_path, EMBEDDINGS, items, "encoder")
    return FaissGallery(tmp_path)


@pytest.fixture
def images() -> LabelledImages:
    pixels = RNG.integers(0, 255, (N, 3, 3), dtype=np.uint8)
    return replace(from_arrays("x", pixels, LABELS), ids=IDS)


def of_label(position: int) -> np.ndarray:
    """The other images of an image's label."""
    others = [n for n, label in enumerate(LABELS) if label == LABELS[position] and n != position]
    return np.array(others, dtype=np.int64)


def test_an_image_is_hidden_from_its_own_list_and_from_the_mean_of_its_label(
    gallery: FaissGallery, images: LabelledImages
) -> None:
    """Against a search by brute force among all the others."""
    observed = observe_left_out(gallery, label_means(gallery), images, EMBEDDINGS, np.zeros((N, 5)))
    for position in range(N):
        others = np.delete(np.arange(N), position)
        similarities = DIRECTIONS[others] @ DIRECTIONS[position]
        order = np.argsort(-similarities)
        np.testing.assert_allclose(observed.similarities[position], similarities[order], atol=1e-6)
        labels = np.array(LABELS)[others[order]]
        np.testing.assert_array_equal(observed.matches[position], labels == LABELS[position])
        if len(of_label(position)) == 0:
            continue
        mean = DIRECTIONS[of_label(position)].sum(axis=0)
        cosine = mean @ DIRECTIONS[position] / np.linalg.norm(mean)
        shown = observed.mean_similarities[position][observed.matches[position]]
        np.testing.assert_allclose(shown, cosine, atol=1e-5)


def test_means_are_those_of_all_items_of_a_label(gallery: FaissGallery) -> None:
    means = label_means(gallery).directions
    for code, label in enumerate(gallery.labels):
        total = DIRECTIONS[np.array(LABELS) == label].sum(axis=0)
        np.testing.assert_allclose(means[code], total / np.linalg.norm(total), atol=1e-5)


def test_with_their_label_hidden_too_they_match_nothing(
    gallery: FaissGallery, images: LabelledImages
) -> None:
    observed = observe_left_out(
        gallery, label_means(gallery), images, EMBEDDINGS, np.zeros((N, 5)), hide_label=True
    )
    assert not observed.matches.any()
    nearest = [
        np.delete(DIRECTIONS, np.r_[n, of_label(n)], axis=0) @ DIRECTIONS[n] for n in range(N)
    ]
    np.testing.assert_allclose(
        observed.similarities[:, 0], [each.max() for each in nearest], atol=1e-6
    )


def test_images_make_up_for_missing_queries(gallery: FaissGallery, images: LabelledImages) -> None:
    held_out = images.subset(np.array([3, 5, 8]))  # copies of what is in the gallery
    left_out, sources = left_out_queries(
        gallery, label_means(gallery), images, EMBEDDINGS, held_out, 0, strangers=False
    )
    assert left_out is not None
    assert left_out.no_match is not None
    assert len(left_out.matched) == len(left_out.no_match) == N - 1  # one has none to be found
    np.testing.assert_array_equal(left_out.sources[[3, 5, 8]], sources)
    assert len(np.unique(left_out.sources)) == N - 1
    # A detector that knew an image would find it at distance nought.
    assert left_out.matched.outlier_signals[:, 0].min() > np.log(0.1)
    with_strangers, _ = left_out_queries(
        gallery, label_means(gallery), images, EMBEDDINGS, held_out, 0, strangers=True
    )
    assert with_strangers is not None
    assert with_strangers.no_match is None


def test_enough_queries_need_no_images(
    gallery: FaissGallery, images: LabelledImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("index_builder.calibration.left_out.ENOUGH", 20)
    means = label_means(gallery)
    for n_held_out, n_left_out in ((15, 5), (20, 0)):
        held_out = images.subset(np.arange(n_held_out))
        left_out, sources = left_out_queries(
            gallery, means, images, EMBEDDINGS, held_out, 0, strangers=True
        )
        assert len(sources) == n_held_out
        assert (0 if left_out is None else len(left_out.matched)) == n_left_out


def test_copies_of_a_picture_share_a_number() -> None:
    pixels = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2)
    pixels[3] = pixels[1]
    images = from_arrays("x", pixels, list("abcde"))
    numbers = pictures(images, images.subset(np.array([4, 1])))
    assert numbers[1] == numbers[3] == numbers[6]
    assert numbers[4] == numbers[5]
    assert len(np.unique(numbers)) == 4
