from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from laws.gallery_laws import new_items, random_embeddings

from model_store.gallery import FaissGallery, write_faiss_gallery
from model_store.search import rank_stability, two_stage_search
from model_store.sphere import base_noise, sample_projected_normal


@pytest.fixture
def gallery(tmp_path: Path) -> FaissGallery:
    write_faiss_gallery(tmp_path, random_embeddings(400, 6, seed=0), new_items(400), "e")
    return FaissGallery(tmp_path)


def naive_stability(similarities: Sequence[Sequence[float]], k: int) -> list[float]:
    """Sort every sample's list and count."""
    n = len(similarities[0])
    counts = [0] * n
    for row in similarities:
        kth = sorted(row, reverse=True)[k - 1]
        for item in range(n):
            counts[item] += row[item] >= kth
    return [count / len(similarities) for count in counts]


@pytest.mark.parametrize("k", [1, 3, 11])
def test_stability_is_the_share_of_samples_with_the_item_on_top(k: int) -> None:
    similarities = np.random.default_rng(0).standard_normal((37, 11)).astype(np.float32)
    expected = naive_stability(similarities.tolist(), k)
    np.testing.assert_allclose(rank_stability(similarities, k), expected)


def test_a_certain_query_has_a_stable_list(gallery: FaissGallery) -> None:
    direction = gallery.directions(np.array([7]))[0]
    found = two_stage_search(gallery, direction, np.repeat(direction[None], 50, 0), k=5)
    assert found.rows[0] == 7
    np.testing.assert_array_equal(found.rank_stability[:5], 1)
    np.testing.assert_array_equal(found.rank_stability[5:], 0)


def test_two_stages_agree_with_searching_every_sample(gallery: FaissGallery) -> None:
    direction = gallery.directions(np.array([11]))[0]
    samples = sample_projected_normal(
        direction, np.full(6, 0.02, dtype=np.float32), base_noise("e", 200, 6)
    )
    found = two_stage_search(gallery, direction, samples, k=4, n_candidates=150)
    everything = gallery.directions(np.arange(gallery.n_items))
    top = np.argsort(-(samples @ everything.T), axis=1)[:, :4]
    share = np.bincount(top.ravel(), minlength=gallery.n_items) / len(samples)
    np.testing.assert_allclose(found.rank_stability[:10], share[found.rows[:10]], atol=0.011)
    assert 0 < found.rank_stability[6] < 1


def test_at_least_k_candidates_are_fetched(gallery: FaissGallery) -> None:
    direction = gallery.directions(np.array([0]))[0]
    assert (
        len(two_stage_search(gallery, direction, direction[None], 60, n_candidates=10).rows) == 60
    )
