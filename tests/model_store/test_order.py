"""Lists by probability: which items come first, what is promised of them, and of whom not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index_builder.datasets.small_images import digits
from model_store.answers import Answer
from model_store.bundles.bundle import open_bundle
from model_store.decision import Calibration
from model_store.errors import OrderUnavailable
from model_store.gallery import read_filter
from model_store.predictive import Noise, Predictive, correlation_of
from model_store.retriever import Retriever
from model_store.search import N_CANDIDATES, Diversity, pairs_of


@pytest.fixture(scope="module")
def retriever(digits_bundle: Path) -> Retriever:
    return open_bundle(digits_bundle, "cpu").retriever


@pytest.fixture(scope="module")
def queries(retriever: Retriever) -> list[Predictive]:
    images = digits()
    chosen = images.at(np.random.default_rng(0).permutation(len(images))[:60])
    return retriever.embed(chosen.prepared(retriever.encoder.metadata.preprocessing))


def calibration_of(retriever: Retriever) -> Calibration:
    assert retriever.calibration is not None
    return retriever.calibration


def ids(answer: Answer) -> list[str]:
    return [match.id for match in answer.matches]


def probabilities(answer: Answer) -> list[float]:
    found = [match.match_probability for match in answer.matches]
    assert None not in found
    return [value for value in found if value is not None]


def sorted_by_hand(nearest: Answer) -> list[str]:
    """Ids of a whole list by similarity, as they stand in one by probability."""
    places = range(len(nearest.matches))
    likely = probabilities(nearest)
    return [
        nearest.matches[place].id
        for place in sorted(places, key=lambda place: (-likely[place], place))
    ]


def test_the_likeliest_come_first_and_of_them_the_nearest(
    retriever: Retriever, queries: list[Predictive]
) -> None:
    n_moved = 0
    for query in queries:
        nearest = retriever.find(query, N_CANDIDATES)
        likeliest = retriever.find(query, N_CANDIDATES, order="probability")
        assert (nearest.order, likeliest.order) == ("similarity", "probability")
        assert ids(likeliest) == sorted_by_hand(nearest)
        assert probabilities(likeliest) == sorted(probabilities(nearest), reverse=True)
        assert [match.rank for match in likeliest.matches] == list(range(1, len(ids(nearest)) + 1))
        of_item = {match.id: match for match in nearest.matches}
        for match in likeliest.matches:
            same = of_item[match.id]
            assert (match.similarity, match.rank_stability) == (
                same.similarity,
                same.rank_stability,
            )
        assert likeliest.result_set == nearest.result_set
        n_moved += ids(likeliest) != ids(nearest)
    assert n_moved > len(queries) / 2


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_a_shorter_list_is_the_beginning_of_a_longer_one(
    retriever: Retriever, queries: list[Predictive], limit: int
) -> None:
    """Pages are cut from lists that are asked for again."""
    where = read_filter('{"label": {"in": ["1", "7", "9"]}}')
    alone = Diversity(one_per_label=True)
    asking: list[dict[str, Any]] = [{}, {"where": where}, {"diversity": alone}]
    for query in queries[:10]:
        for asked in asking:
            whole = retriever.find(query, N_CANDIDATES, order="probability", **asked)
            part = retriever.find(query, limit, order="probability", **asked)
            assert ids(part) == ids(whole)[:limit]
            assert probabilities(part) == probabilities(whole)[:limit]
            assert part.n_listed == whole.n_listed
            # Of what ends a part, too: that it is nearer than what the next page begins with.
            of_part, of_whole = (
                np.array([match.rank_confidence for match in one.matches[:limit]], dtype=float)
                for one in (part, whole)
            )
            np.testing.assert_allclose(of_part, of_whole, rtol=1e-6)


def test_the_confidence_in_a_rank_is_of_being_nearer_than_the_next(
    retriever: Retriever, queries: list[Predictive]
) -> None:
    """By ten thousand draws of the pairs, of lists in which nearer items stand further down."""
    generator, below = np.random.default_rng(0), 0
    for query in queries[:5]:
        answer = retriever.find(query, N_CANDIDATES, order="probability")
        rows = np.array([retriever.gallery.row(item) for item in ids(answer)])
        items = retriever.gallery.directions(rows)
        pairs = pairs_of(
            *(retriever.gallery, query, rows, items),
            np.array([match.similarity for match in answer.matches]),
            correlation=correlation_of(retriever.encoder.metadata),
        )
        sizes = len(query.direction), len(rows)
        noise = Noise(*(generator.standard_normal((10_000, n)).astype(np.float32) for n in sizes))
        drawn = pairs.sampled(query, items, noise)
        told = np.array([match.rank_confidence for match in answer.matches[:-1]], dtype=float)
        shares = (drawn[:, :-1] > drawn[:, 1:]).mean(axis=0)
        assert np.abs(told - shares).mean() < 0.03
        below += int((told < 0.5).sum())
    assert below > 0


def test_the_verdict_is_on_the_likeliest(retriever: Retriever, queries: list[Predictive]) -> None:
    fitted = calibration_of(retriever)
    threshold = fitted.promises(order="probability").threshold(2)
    for query in queries:
        answer = retriever.find(query, 1, order="probability")
        if answer.decision.verdict == "match":
            assert probabilities(answer)[0] >= threshold
        elif answer.decision.verdict != "out_of_distribution":
            assert probabilities(answer)[0] < threshold


def test_a_gallery_may_list_by_probability_unless_a_request_says_otherwise(
    retriever: Retriever, queries: list[Predictive]
) -> None:
    own = replace(calibration_of(retriever), order="probability")
    other = Retriever(retriever.encoder, retriever.gallery, own)
    for query in queries[:5]:
        asked = retriever.find(query, 100, order="probability")
        assert ids(other.find(query, 100)) == ids(asked)
        assert ids(other.find(query, 100, order="similarity")) == ids(retriever.find(query, 100))
    # Of an item there are no probabilities, whatever the gallery's order.
    item = retriever.gallery.items(np.array([0]))[0].id
    assert ids(other.similar(item)) == ids(retriever.similar(item))


def test_the_order_is_kept_with_the_calibration(retriever: Retriever, tmp_path: Path) -> None:
    replace(calibration_of(retriever), order="probability").save(tmp_path)
    loaded = Calibration.load(tmp_path)
    assert loaded is not None
    assert loaded.order == "probability"
    likeliest = calibration_of(retriever).promises(order="probability")
    assert loaded.promises().matches == likeliest.matches


def test_without_calibration_there_is_nothing_to_list_by(
    uncalibrated_bundle: Path, queries: list[Predictive]
) -> None:
    bare = open_bundle(uncalibrated_bundle, "cpu").retriever
    with pytest.raises(OrderUnavailable, match=r"not calibrated.*order=similarity"):
        bare.find(queries[0], 10, order="probability")
    assert bare.find(queries[0], 10).order == "similarity"
