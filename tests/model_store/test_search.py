from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.gallery import FaissGallery, MaskedRows, write_faiss_gallery
from model_store.gaussian import DiagonalGaussian, probability_ranks_above
from model_store.predictive import AS_SIMILAR, INDEPENDENT, Noise, Pairs, Predictive
from model_store.search import (
    N_CANDIDATES,
    Diversity,
    Neighbours,
    distinct,
    rank_stability,
    two_stage_search,
)
from model_store.sphere import base_noise, unit_direction
from tests.laws.gallery_laws import new_items, random_embeddings


@pytest.fixture
def gallery(tmp_path: Path) -> FaissGallery:
    """Items that are certain: then the query's samples alone decide on ranks."""
    embeddings = random_embeddings(400, 6, seed=0)
    certain = replace(embeddings, variance=np.zeros_like(embeddings.variance))
    write_faiss_gallery(tmp_path, certain, new_items(400), "e")
    return FaissGallery(tmp_path)


def search(
    gallery: FaissGallery,
    asked: Predictive,
    k: int,
    n_candidates: int = N_CANDIDATES,
    n_samples: int = 50,
    **options: Any,
) -> Neighbours:
    noise = Noise(noise_of_query(n_samples), base_noise("items", n_samples, 1001))
    return two_stage_search(gallery, asked, k, n_candidates, noise=noise, **options)


def noise_of_query(n_samples: int) -> NDArray[np.float32]:
    return base_noise("e", n_samples, 6)


def query(direction: NDArray[Any], variance: NDArray[Any]) -> Predictive:
    return Predictive(direction.astype(np.float32), variance.astype(np.float32), 0.1, 0.0)


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
    found = search(gallery, query(direction, np.zeros(6)), k=5)
    assert found.rows[0] == 7
    np.testing.assert_array_equal(found.rank_stability[:5], 1)
    np.testing.assert_array_equal(found.rank_stability[5:], 0)


def test_two_stages_agree_with_searching_every_sample(gallery: FaissGallery) -> None:
    direction = gallery.directions(np.array([11]))[0]
    asked = query(direction, np.full(6, 0.02))
    samples = asked.samples(noise_of_query(200))
    found = search(gallery, asked, k=4, n_candidates=150, n_samples=200)
    everything = gallery.directions(np.arange(gallery.n_items))
    top = np.argsort(-(samples @ everything.T), axis=1)[:, :4]
    share = np.bincount(top.ravel(), minlength=gallery.n_items) / len(samples)
    np.testing.assert_allclose(found.rank_stability[:10], share[found.rows[:10]], atol=0.011)
    assert 0 < found.rank_stability[6] < 1


def test_at_least_k_candidates_are_fetched(gallery: FaissGallery) -> None:
    direction = gallery.directions(np.array([0]))[0]
    asked = query(direction, np.zeros(6))
    assert len(search(gallery, asked, 60, n_candidates=10).rows) == 60


def test_rank_confidence_is_the_share_of_samples_that_keep_the_order(gallery: FaissGallery) -> None:
    direction = gallery.directions(np.array([11]))[0]
    asked = query(direction, np.linspace(0.001, 0.05, 6))
    found = search(gallery, asked, k=8)
    similarities = asked.samples(noise_of_query(40_000)) @ gallery.directions(found.rows[:9]).T
    kept = (similarities[:, :-1] > similarities[:, 1:]).mean(axis=0)
    assert found.rank_confidence.shape == (8,)
    np.testing.assert_allclose(found.rank_confidence, kept, atol=0.01)
    assert 0.5 <= found.rank_confidence.min() < 0.9 < found.rank_confidence.max()


def test_rank_confidence_of_a_certain_query_is_certain_and_of_a_tie_even() -> None:
    items = np.array([[1, 0], [0.6, 0.8], [0.6, -0.8]], dtype=np.float32)
    asked = query(np.eye(2)[0], np.zeros(2))

    def confidence(similarities: list[float], items: NDArray[np.float32]) -> list[float]:
        n = len(items)
        certain = np.zeros(n, dtype=np.float32)
        pairs = Pairs.of(asked, items, np.array(similarities), certain, np.zeros(n))
        found: list[float] = pairs.nearer_than_next(asked, items).tolist()
        return found

    assert confidence([1, 0.6, 0.6], items) == [1, 0.5]
    assert confidence([0.6 + 1e-8, 0.6], items[1:]) == [1]


def test_uncertain_items_make_ranks_less_firm(gallery: FaissGallery, tmp_path: Path) -> None:
    (tmp_path / "u").mkdir()
    write_faiss_gallery(tmp_path / "u", random_embeddings(400, 6, seed=0), new_items(400), "e")
    direction = gallery.directions(np.array([11]))[0]
    asked = query(direction, np.full(6, 0.01))
    certain = search(gallery, asked, 5, n_samples=400)
    of = FaissGallery(tmp_path / "u")
    apart, together = (
        search(of, asked, 5, n_samples=400, correlation=one) for one in (INDEPENDENT, AS_SIMILAR)
    )
    np.testing.assert_array_equal(apart.rows, certain.rows)
    assert apart.rank_confidence.mean() < certain.rank_confidence.mean()
    assert apart.rank_stability[0] < certain.rank_stability[0]
    assert apart.pairs.std[1] > certain.pairs.std[1]
    assert together.rank_confidence.mean() > apart.rank_confidence.mean()
    assert together.pairs.std[1] < apart.pairs.std[1]


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.3])
def test_rank_confidence_is_that_of_the_triplet(gallery: FaissGallery, scale: float) -> None:
    generator = np.random.default_rng(4)
    direction = gallery.directions(np.array([11]))[0] + 0.1 * generator.standard_normal(6)
    direction = (direction / np.linalg.norm(direction)).astype(np.float32)
    asked = query(direction, scale * generator.exponential(size=6))
    found = search(gallery, asked, k=60)
    items = gallery.directions(found.rows[:61]).astype(np.float64)
    expected = probability_ranks_above(
        DiagonalGaussian(asked.direction.astype(np.float64), asked.variance.astype(np.float64)),
        DiagonalGaussian(items[:-1], np.zeros(1)),
        DiagonalGaussian(items[1:], np.zeros(1)),
    )
    np.testing.assert_allclose(found.rank_confidence, expected, atol=1e-5)
    assert expected.min() < 0.9


def test_the_last_item_of_the_gallery_has_nothing_below_it(gallery: FaissGallery) -> None:
    found = search(gallery, query(np.eye(6)[0], np.ones(6)), k=400)
    assert len(found.rank_confidence) == 399


@pytest.mark.parametrize("n_candidates", [5, 1000])
def test_an_item_left_out_is_as_if_it_had_never_been(
    gallery: FaissGallery, n_candidates: int
) -> None:
    directions = gallery.directions(np.arange(gallery.n_items))
    asked = query(directions[3], np.full(directions.shape[1], 0.01))
    whole = search(gallery, asked, 4, n_candidates + 1)
    without = search(gallery, asked, 4, n_candidates, exclude=3)
    assert whole.rows[0] == 3
    np.testing.assert_array_equal(without.rows, whole.rows[1:])
    np.testing.assert_array_equal(without.similarities, whole.similarities[1:])
    np.testing.assert_array_equal(without.rank_confidence[:2], whole.rank_confidence[1:3])
    far = int(whole.rows[-1])
    others = search(gallery, asked, 4, n_candidates, exclude=far)
    np.testing.assert_array_equal(others.rows, whole.rows[:-1])


@pytest.mark.parametrize(
    "diversity", [Diversity(), Diversity(True), Diversity(False, 0.7), Diversity(True, 0.7)]
)
def test_no_listed_item_stands_for_another(diversity: Diversity) -> None:
    directions = np.random.default_rng(8).standard_normal((60, 4)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    codes = np.random.default_rng(9).integers(-1, 9, 60).astype(np.int32)
    kept: list[int] = []
    for place in range(60):
        same_label = diversity.one_per_label and codes[place] >= 0 and codes[place] in codes[kept]
        near = diversity.duplicate_similarity is not None and any(
            directions[place] @ directions[other] >= diversity.duplicate_similarity
            for other in kept
        )
        if not same_label and not near:
            kept.append(place)
    np.testing.assert_array_equal(distinct(diversity, directions, codes), kept)


@pytest.mark.parametrize("dim", [32, 512])
def test_of_exact_copies_one_is_listed(dim: int) -> None:
    """The product of a float32 unit vector with itself is as often below 1 as above."""
    vectors = np.random.default_rng(0).standard_normal((50, dim)).astype(np.float32)
    twice = np.repeat(unit_direction(vectors), 2, axis=0)
    listed = distinct(Diversity(duplicate_similarity=1.0), twice, np.full(100, -1, dtype=np.int32))
    np.testing.assert_array_equal(listed, np.arange(0, 100, 2))


def test_the_numbers_of_a_diverse_list_are_of_the_list(gallery: FaissGallery) -> None:
    asked = query(gallery.directions(np.array([7]))[0], np.full(6, 0.05))
    found = search(gallery, asked, 2, 90, diversity=Diversity(one_per_label=True))
    directions = gallery.directions(found.rows[found.listed])
    similarities = (asked.samples(noise_of_query(50)) @ directions.T).tolist()
    np.testing.assert_allclose(found.rank_stability, naive_stability(similarities, 2))
    nearest = found.similarities[found.listed[:3]]
    certain, apart = np.zeros(3, dtype=np.float32), np.zeros(3)
    pairs = Pairs.of(asked, directions[:3], nearest, certain, apart)
    expected = pairs.nearer_than_next(asked, directions[:3])
    np.testing.assert_array_equal(found.rank_confidence, expected)


def test_only_allowed_rows_are_found(gallery: FaissGallery) -> None:
    asked = query(gallery.directions(np.array([7]))[0], np.full(6, 0.05))
    allowed = np.arange(400) % 5 == 1
    found = search(gallery, asked, 3, 50, exclude=11, allowed=MaskedRows(allowed))
    assert len(found.rows) == 50
    assert (found.rows % 5 == 1).all()
    assert 11 not in found.rows
