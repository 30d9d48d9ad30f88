from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index_builder.calibration import DetectorFolds, fit_detector, leave_one_out_queries
from index_builder.calibration.item_queries import group_numbers, rows_of_groups, whole_groups
from index_builder.calibration.retrieval import (
    CalibratedGallery,
    RetrievedQueries,
    fit_label_folds,
    objects_of,
)
from index_builder.datasets.images import LabelledImages, from_arrays
from model_store.decision import label_means
from model_store.encoder.contract import Embeddings
from model_store.gallery import FaissGallery, NewItem, write_faiss_gallery
from model_store.sphere import unit_direction
from tests.laws.gallery_laws import new_items

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


def observed_in(
    gallery: FaissGallery,
    labels: tuple[str, ...],
    n: int,
    objects: np.ndarray | None = None,
    **hidden: Any,
) -> RetrievedQueries:
    detector = fit_detector(EMBEDDINGS, np.zeros(N, dtype=np.int64))
    means = label_means(gallery)
    searched = CalibratedGallery("encoder", gallery, detector, means, n, objects=objects)
    return searched.look_up(labels, EMBEDDINGS, np.zeros(N), **hidden)


def of_label(position: int) -> np.ndarray:
    """The other images of an image's label."""
    others = [n for n, label in enumerate(LABELS) if label == LABELS[position] and n != position]
    return np.array(others, dtype=np.int64)


def test_an_image_is_hidden_from_its_own_list_and_from_the_mean_of_its_label(
    gallery: FaissGallery, images: LabelledImages
) -> None:
    """Against a search by brute force among all the others."""
    hidden = rows_of_groups(gallery, images)
    assert hidden.shape == (N, 1)
    observed = observed_in(gallery, images.labels, N - 1, hidden=hidden)
    for position in range(N):
        others = np.delete(np.arange(N), position)
        similarities = DIRECTIONS[others] @ DIRECTIONS[position]
        order = np.argsort(-similarities)
        np.testing.assert_allclose(observed.similarities[position], similarities[order], atol=1e-6)
        labels = np.array(LABELS)[others[order]]
        np.testing.assert_array_equal(observed.matches[position], labels == LABELS[position])
        assert observed.own_sizes[position] == len(of_label(position)) + 1  # with the image
        of_each = [LABELS.count(label) for label in labels]
        np.testing.assert_array_equal(observed.found_sizes[position], of_each)
        if len(of_label(position)) == 0:
            continue
        mean = DIRECTIONS[of_label(position)].sum(axis=0)
        cosine = mean @ DIRECTIONS[position] / np.linalg.norm(mean)
        shown = observed.mean_similarities[position][observed.matches[position]]
        np.testing.assert_allclose(shown, cosine, atol=1e-5)


def test_an_image_does_not_find_its_group_either(
    gallery: FaissGallery, images: LabelledImages
) -> None:
    """Images 4 k and 4 k + 4 of a label show one object, say."""
    groups = tuple(f"object-{number // 8}-{number % 4}" for number in range(N))
    grouped = replace(images, groups=groups)
    hidden = rows_of_groups(gallery, grouped)
    n = N - hidden.shape[1]
    observed = observed_in(gallery, grouped.labels, n, hidden=hidden)
    for position in range(N):
        others = np.array([n for n in range(N) if groups[n] != groups[position]])
        nearest = np.sort(DIRECTIONS[others] @ DIRECTIONS[position])[::-1][:n]
        np.testing.assert_allclose(observed.similarities[position], nearest, atol=1e-6)
        assert observed.own_sizes[position] == LABELS.count(LABELS[position])


def test_means_are_those_of_all_items_of_a_label(gallery: FaissGallery) -> None:
    means = label_means(gallery).directions
    for code, label in enumerate(gallery.labels):
        total = DIRECTIONS[np.array(LABELS) == label].sum(axis=0)
        np.testing.assert_allclose(means[code], total / np.linalg.norm(total), atol=1e-5)


def test_with_their_label_hidden_too_they_match_nothing(
    gallery: FaissGallery, images: LabelledImages
) -> None:
    observed = observed_in(gallery, images.labels, 20, hide_label=True)
    assert not observed.matches.any()
    assert (observed.own_sizes == 0).all()
    nearest = [
        np.delete(DIRECTIONS, np.r_[n, of_label(n)], axis=0) @ DIRECTIONS[n] for n in range(N)
    ]
    np.testing.assert_allclose(
        observed.similarities[:, 0], [each.max() for each in nearest], atol=1e-6
    )


def test_queries_of_labels_that_the_gallery_does_not_hold_keep_them_apart(
    gallery: FaissGallery, images: LabelledImages
) -> None:
    strange = replace(images, labels=tuple(f"unknown-{n % 3}" for n in range(N)))
    observed = observed_in(gallery, strange.labels, 20)
    assert not observed.matches.any()
    assert sorted(set(observed.codes.tolist())) == [-4, -3, -2]


def test_images_make_up_for_missing_queries(images: LabelledImages) -> None:
    assert len(leave_one_out_queries(images, 0)) == N - 1  # one has none to be found
    assert len(leave_one_out_queries(images, 995)) == 5
    assert len(leave_one_out_queries(images, 1000)) == 0
    of_one_object = replace(images, groups=tuple(LABELS))
    assert len(leave_one_out_queries(of_one_object, 0)) == 0


def test_no_detector_has_seen_an_image_or_its_group() -> None:
    """A detector that knew an image would find it at distance nought."""
    codes, alone = np.zeros(N, dtype=np.int64), np.arange(N)
    scores = DetectorFolds.of(EMBEDDINGS, codes, alone).scores(EMBEDDINGS, alone)
    shown = np.r_[alone, np.roll(alone, 1)]  # each image twice, in different folds by itself
    twice = EMBEDDINGS.at(shown)
    seen, hidden = (
        DetectorFolds.of(twice, np.r_[codes, codes], groups).scores(twice, groups)
        for groups in (np.arange(2 * N), shown)
    )
    assert np.median(seen) < np.median(hidden) - 1
    assert hidden.min() > scores.min() - 1


def test_copies_and_groups_share_a_number() -> None:
    pixels = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2)
    pixels[3] = pixels[1]
    images = from_arrays("x", pixels, list("abcde"))
    numbers = group_numbers(images, images.at(np.array([4, 1])))
    assert numbers[1] == numbers[3] == numbers[6]
    assert numbers[4] == numbers[5]
    assert len(np.unique(numbers)) == 4
    named = replace(images, groups=("cup", "cup", "jug", "pan", "jug"))
    numbers = group_numbers(named)
    assert numbers[0] == numbers[1]
    assert numbers[2] == numbers[4]
    assert len(np.unique(numbers)) == 3


def test_without_labels_an_absent_query_finds_nothing_that_shows_the_same(
    tmp_path: Path, images: LabelledImages
) -> None:
    """Views whose item is hidden: its copies and near-duplicates are hidden with it."""
    thumbnail = new_items(1)[0].thumbnail
    items = [NewItem(name, None, {}, thumbnail) for name in IDS]
    write_faiss_gallery(tmp_path, EMBEDDINGS, items, "encoder")
    gallery = FaissGallery(tmp_path)
    groups = tuple("ab"[n % 2] if n < 10 else str(n) for n in range(N))  # two of five, of images
    alone = replace(images, labels=IDS)
    assert objects_of(gallery, alone) is None
    assert objects_of(gallery, replace(alone, groups=tuple(map(str, range(N))))) is None
    grouped = replace(alone, groups=groups)
    objects = objects_of(gallery, grouped)
    assert objects is not None
    n = N - 5
    observed = observed_in(gallery, grouped.labels, n, hide_label=True, objects=objects)
    for position in range(N):
        others = [n for n in range(N) if groups[n] != groups[position]]
        similarities = np.sort(DIRECTIONS[others] @ DIRECTIONS[position])[::-1][:n]
        np.testing.assert_allclose(observed.similarities[position], similarities, atol=1e-6)
        assert not observed.matches[position].any()


def test_detectors_that_do_not_know_an_item_do_not_know_its_copy() -> None:
    groups = [f"group-{number // 2}" for number in range(N)]
    folds = fit_label_folds(EMBEDDINGS, groups, seed=0).of(IDS, groups)
    assert all(folds.fold_of[IDS[n]] == folds.fold_of[IDS[n + 1]] for n in range(0, N, 2))
    assert len({folds.fold_of[name] for name in IDS}) > 5


def test_of_a_sample_no_group_is_cut_and_all_are_as_likely() -> None:
    groups = np.repeat(np.arange(60), np.r_[np.full(30, 1), np.full(30, 5)])
    n_taken = np.zeros(60)
    for seed in range(400):
        order = np.random.default_rng(seed).permutation(len(groups))
        taken = whole_groups(groups, order, 90)
        assert 80 < len(taken) <= 90
        np.testing.assert_array_equal(taken, order[np.isin(order, taken)])
        sizes = np.bincount(groups[taken], minlength=60)
        assert set(sizes.tolist()) <= {0, 1, 5}
        assert (sizes[:30] <= 1).all()
        n_taken += sizes > 0
    # Half of the images: of the large groups as of the small.
    assert n_taken[:30].mean() / 400 == pytest.approx(0.5, abs=0.03)
    assert n_taken[30:].mean() / 400 == pytest.approx(0.5, abs=0.03)


def test_images_that_are_each_a_group_are_taken_in_their_order() -> None:
    order = RNG.permutation(N)
    for groups in (None, np.arange(N), list(IDS)):
        np.testing.assert_array_equal(whole_groups(groups, order, 20), order[:20])
