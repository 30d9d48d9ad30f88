"""Matches: ranked neighbours with their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision import Decision
from model_store.gallery import Item
from model_store.search import Neighbours


@dataclass(frozen=True, slots=True)
class Match:
    """One ranked neighbour.

    Attributes
    ----------
    rank : from 1.
    item : whom the gallery's owner knows.
    similarity : cosine of the directions, in [−1, 1].
    similarity_std : its standard deviation, for query and item are both uncertain; None of a query
        whose uncertainty is unknown.
    match_probability : calibrated P(true match), None without calibration.
    rank_stability : share of predictive samples under which it stays in the list; None of a query
        whose uncertainty is unknown.
    rank_confidence : P(it is nearer to the query than the next item), None of the gallery's last,
        and of such a query.
    variance : of the item's own embedding, relative to its squared norm.
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
    variances: NDArray[np.float32],
    neighbours: Neighbours,
    decision: Decision,
    *,
    has_uncertainty: bool,
) -> tuple[Match, ...]:
    """The first of the list, with what is known of each.

    Parameters
    ----------
    variances : (n,) of the n ``items``.
    has_uncertainty : whether the query's is known, which the ranks' firmness follows from.
    """
    similarities = neighbours.similarities.tolist()  # plain numbers, all at once
    probabilities = _plain(decision.match_probabilities)
    stds = neighbours.stds.tolist()
    confidences = neighbours.rank_confidence if has_uncertainty else ()
    return tuple(
        Match(
            rank=rank + 1,
            item=item,
            similarity=similarities[place],
            similarity_std=stds[place] if has_uncertainty else None,
            match_probability=None if probabilities is None else probabilities[rank],
            rank_stability=float(neighbours.rank_stability[rank]) if has_uncertainty else None,
            rank_confidence=float(confidences[rank]) if rank < len(confidences) else None,
            variance=float(variances[rank]),
        )
        for rank, (place, item) in enumerate(zip(neighbours.listed, items, strict=False))
    )


def _plain(numbers: NDArray[np.float64] | None) -> list[Any] | None:
    return None if numbers is None else numbers.tolist()
