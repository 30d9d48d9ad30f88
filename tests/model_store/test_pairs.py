"""The moments of a similarity against embeddings that are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.encoder.contract import EncoderMetadata
from model_store.images import Preprocessing
from model_store.predictive import (
    AS_SIMILAR,
    INDEPENDENT,
    Correlation,
    Noise,
    Pairs,
    Predictive,
    correlation_of,
)
from model_store.search import rank_stability
from model_store.sphere import unit_direction

DIM, N_DRAWS = 24, 100_000

Floats = NDArray[np.float64]


class World:
    """A query and three items whose errors have one profile over dimensions."""

    def __init__(self, scale: float, correlation: float) -> None:
        draw = np.random.default_rng(5)
        self.query = unit_direction(draw.normal(size=DIM))
        noise = draw.normal(size=(3, DIM)) * np.array([[0.05], [0.15], [0.3]])
        self.items = unit_direction(self.query + noise)
        self.variance = scale * draw.uniform(0.2, 2, DIM)
        self.ratios = np.array([0.5, 1.0, 1.6])
        self.similarities = self.items @ self.query
        self.correlations = np.full(3, correlation)

    @property
    def predictive(self) -> Predictive:
        return Predictive(self.query.astype(np.float32), self.variance.astype(np.float32), 0.1, 0.0)

    @property
    def pairs(self) -> Pairs:
        return Pairs.of(
            self.predictive,
            self.items.astype(np.float32),
            self.similarities,
            (self.ratios**2 * self.variance.sum()).astype(np.float32),
            self.correlations,
        )

    def drawn(self) -> Floats:
        """Similarities (N, 3) of embeddings that are drawn together."""
        draw = np.random.default_rng(6)
        shared = draw.normal(size=(N_DRAWS, DIM))
        spread = np.sqrt(self.variance)
        query = unit_direction(self.query + spread * shared)
        found = np.empty((N_DRAWS, 3))
        for place in range(3):
            r = self.correlations[place]
            own = r * shared + np.sqrt(1 - r**2) * draw.normal(size=(N_DRAWS, DIM))
            item = unit_direction(self.items[place] + self.ratios[place] * spread * own)
            found[:, place] = (query * item).sum(axis=1)
        return found


@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
def test_standard_deviation_is_that_of_drawn_embeddings(correlation: float) -> None:
    world = World(1e-4, correlation)
    drawn = world.drawn().std(axis=0)
    np.testing.assert_allclose(world.pairs.std, drawn, rtol=0.02)
    np.testing.assert_allclose(world.pairs.first_order, drawn, rtol=0.03)


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_standard_deviation_of_large_variances_is_near_that_of_drawn_embeddings(
    correlation: float,
) -> None:
    """The length of a draw is 1.2, not 1; the terms of third order are missing."""
    world = World(0.02, correlation)
    np.testing.assert_allclose(world.pairs.std, world.drawn().std(axis=0), rtol=0.35)


def test_pair_of_an_item_that_moves_with_the_query_is_the_more_certain() -> None:
    apart, together = World(1e-3, 0.0).pairs, World(1e-3, 0.9).pairs
    assert (together.std < apart.std).all()


def test_pair_of_copies_that_move_together_is_certain() -> None:
    world = World(1e-2, 1.0)
    copy = world.query.astype(np.float32)[None]
    total = np.array([world.variance.sum()], np.float32)
    predictive = world.predictive
    found = Pairs.of(predictive, copy, np.ones(1), total, np.ones(1))
    assert found.std[0] < 1e-4


def test_pair_without_variance_is_certain() -> None:
    world = World(0.0, 0.5)
    np.testing.assert_array_equal(world.pairs.std, 0)
    np.testing.assert_array_equal(world.pairs.first_order, 0)


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_nearer_than_next_is_the_share_of_drawn_embeddings(correlation: float) -> None:
    world = World(1e-3, correlation)
    world.ratios[:] = 1  # or the more certain item would be the nearer one, to second order
    world.items[1] = unit_direction(world.items[0] + 0.01 * world.items[2])
    world.similarities = world.items @ world.query
    drawn = world.drawn()
    predictive = world.predictive
    found = world.pairs.nearer_than_next(predictive, world.items.astype(np.float32))
    wanted = [(drawn[:, place] > drawn[:, place + 1]).mean() for place in range(2)]
    np.testing.assert_allclose(found, wanted, atol=0.02)


@pytest.mark.parametrize("scale", [1e-3, 0.02])
@pytest.mark.parametrize("correlation", [0.0, 0.6, 1.0])
def test_sampled_products_rank_items_as_drawn_embeddings_do(
    scale: float, correlation: float
) -> None:
    world = World(scale, correlation)
    world.items[1] = unit_direction(world.items[0] + 0.05 * world.items[2])
    world.similarities = world.items @ world.query
    draw = np.random.default_rng(7)
    noise = Noise(*(draw.normal(size=(N_DRAWS, n)).astype(np.float32) for n in (DIM, 5)))
    found = world.pairs.sampled(world.predictive, world.items.astype(np.float32), noise)
    drawn = world.drawn()
    for one, other in ((0, 1), (0, 2), (1, 2)):
        share, wanted = (np.mean(part[:, one] > part[:, other]) for part in (found, drawn))
        assert share == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("scale", [1e-5, 1e-3, 3e-2])
def test_rivals_are_all_that_any_draw_finds_among_the_nearest(k: int, scale: float) -> None:
    n, n_rivals = 200, []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        direction = unit_direction(draw.normal(size=DIM))
        spread = draw.uniform(0.05, 1.5, (n, 1))
        items = unit_direction(direction + spread * draw.normal(size=(n, DIM)) / np.sqrt(DIM))
        order = np.argsort(-(items @ direction))
        items = items[order].astype(np.float32)
        variance = scale * draw.uniform(0.2, 2, DIM)
        query = Predictive(direction.astype(np.float32), variance.astype(np.float32), 0.1, 0.0)
        totals = variance.sum() * draw.uniform(0.2, 2.5, n)
        similarities = (items @ direction).astype(np.float64)
        correlations = np.clip(similarities, 0, 1)
        pairs = Pairs.of(query, items, similarities, totals.astype(np.float32), correlations)
        noise = Noise(*(draw.normal(size=(100, size)).astype(np.float32) for size in (DIM, n)))
        stability = rank_stability(pairs.sampled(query, items, noise), k)
        m = pairs.rivals(query, k)
        n_rivals.append(m)
        assert m >= k
        assert not stability[m:].any()
    if scale < 1e-3:
        assert np.mean(n_rivals) < n / 2  # most are spared


def test_correlation_is_a_line_in_similarity_and_in_products_of_embeddings() -> None:
    similarities, totals = np.array([0.9, 0.5, -0.5]), np.array([0.4, 0.1, 0.0])
    r = Correlation(-0.2, 1.0, 0.02).of(similarities, 0.1, totals)
    np.testing.assert_allclose(r, [-0.2 + 0.9 + 0.02 * 0.9 / 0.2, -0.2 + 0.5 + 0.02 * 0.5 / 0.1, 0])
    np.testing.assert_array_equal(AS_SIMILAR.of(similarities, 0.0, totals), [0.9, 0.5, 0])


@pytest.mark.parametrize(
    ("posterior", "known", "expected"),
    [
        ("laplace_kronecker_fixed_euclidean", (0.2, 0.5, -0.1), (0.2, 0.5, -0.1)),
        ("laplace_fixed_euclidean", None, AS_SIMILAR),
        ("online_laplace_fixed_euclidean", None, AS_SIMILAR),
        ("ensemble_of_5", None, AS_SIMILAR),
        ("mc_dropout", None, AS_SIMILAR),
        ("pfe", None, INDEPENDENT),
        ("hib", None, INDEPENDENT),
        ("deterministic", None, INDEPENDENT),
    ],
)
def test_posteriors_over_weights_move_query_and_item(
    posterior: str, known: tuple[float, ...] | None, expected: tuple[float, ...]
) -> None:
    metadata = EncoderMetadata(Preprocessing(8, 8), posterior, known)
    assert tuple(correlation_of(metadata)) == expected
    assert tuple(correlation_of(EncoderMetadata.from_json(metadata.to_json()))) == expected
