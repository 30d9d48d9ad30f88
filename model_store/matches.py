"""Matches: ranked neighbours with their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

from model_store.decision import Decision
from model_store.gallery import Item
from model_store.search import Neighbours


@dataclass(frozen=True, slots=True)
class Match:
    """One ranked neighbour.

    Attributes
    ----------
    rank : rank in the list, from 1.
    item : the item of the gallery.
    similarity : cosine of the directions, in [−1, 1].
    similarity_std : standard deviation of the similarity, from the uncertainty of query and item;
        None if the query's uncertainty is unknown.
    match_probability : calibrated P(the item is a true match); None without calibration.
    rank_stability : share of predictive samples in which the item stays in the list; None if the
        query's uncertainty is unknown.
    rank_confidence : P(the item is nearer to the query than the next item); None for the last item,
        or if the query's uncertainty is unknown.
    variance : variance of the item's embedding, relative to its squared norm.
    """

    rank: int
    item: Item
    similarity: float
    similarity_std: float | None
    match_probability: float | None
    rank_stability: float | None
    rank_confidence: float | None
    variance: float


def matches_of(
    items: Sequence[Item],
    neighbours: Neighbours,
    decision: Decision,
    *,
    has_uncertainty: bool,
) -> tuple[Match, ...]:
    """Return the first items of the list as matches.

    Parameters
    ----------
    has_uncertainty : whether the query's uncertainty is known. Rank stability and rank confidence
        need this uncertainty.
    """
    n = len(items)
    places = neighbours.listed[:n]
    unknown: list[float | None] = [None] * n
    stds, stabilities, confidences = unknown, unknown, unknown
    if has_uncertainty:
        stds = neighbours.pairs.std[places].tolist()
        stabilities = neighbours.rank_stability[:n].tolist()
        confidences = [*neighbours.rank_confidence.tolist(), None][:n]
    probabilities = decision.match_probabilities
    columns = zip(
        range(1, n + 1),
        items,
        neighbours.similarities[places].tolist(),
        stds,
        unknown if probabilities is None else probabilities.tolist(),
        stabilities,
        confidences,
        neighbours.pairs.variances[places].tolist(),
        strict=True,
    )
    return tuple(starmap(Match, columns))
