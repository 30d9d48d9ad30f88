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
    rank : rank in the list, from 1.
    item : the item of the gallery.
    similarity : cosine of the directions, in [−1, 1].
    similarity_std : standard deviation of the similarity, because query and item are uncertain;
        None if the query's uncertainty is unknown.
    match_probability : calibrated P(true match), None without calibration.
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
    variances: NDArray[np.float32],
    neighbours: Neighbours,
    decision: Decision,
    *,
    has_uncertainty: bool,
) -> tuple[Match, ...]:
    """Return the first items of the list as matches.

    Parameters
    ----------
    variances : (n,) variances of the n ``items``.
    has_uncertainty : whether the query's uncertainty is known; rank stability and confidence need
        it.
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
