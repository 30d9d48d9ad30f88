"""Two-stage probabilistic search: candidates once, predictive samples against the candidates.

Searching the gallery with every one of S predictive samples costs S searches. The samples lie
close to their mean, so what they find is among the mean's own candidates: one search, then one
small product of the samples with the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.gallery import Gallery
from model_store.gaussian import DiagonalGaussian, probability_ranks_above
from model_store.predictive import Predictive

N_CANDIDATES = 200
"""How many the first stage fetches; also what the decision layer's signals are taken from."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The candidates of one query, nearest first.

    Attributes
    ----------
    rows : (n,) int64, positions in the gallery.
    similarities : (n,) float64, descending; equal ones by id.
    rank_stability : (n,) share of the predictive samples under which the item is in the top k.
    rank_confidence : (min(k, n - 1),) P(the item is nearer to the query than the next one is).
    """

    rows: NDArray[np.int64]
    similarities: NDArray[np.float64]
    rank_stability: NDArray[np.float64]
    rank_confidence: NDArray[np.float64]


def two_stage_search(
    gallery: Gallery,
    query: Predictive,
    k: int,
    n_candidates: int = N_CANDIDATES,
    left_out: int | None = None,
) -> Neighbours:
    """Find the items nearest to one query and how firmly each holds its place.

    Parameters
    ----------
    query : its mean direction alone orders the items; its samples and its variance say how firmly.
    k : the top of the list that `Neighbours.rank_stability` refers to.
    n_candidates : first stage; at least ``k`` are fetched.
    left_out : row of an item not to find, such as the one that the query is.
    """
    n = max(n_candidates, k)
    found = gallery.candidates(query.direction[None], n + (left_out is not None))
    wanted = np.flatnonzero(found.rows[0] != left_out)[:n]
    rows = found.rows[0, wanted]
    directions = gallery.directions(rows)
    return Neighbours(
        rows,
        found.similarities[0, wanted],
        rank_stability(query.samples @ directions.T, k),
        rank_confidence(query.direction, query.variance, directions[: k + 1]),
    )


def rank_confidence(
    direction: NDArray[np.float32], variance: NDArray[np.float32], items: NDArray[np.float32]
) -> NDArray[np.float64]:
    """P(each item is nearer to the query than the next one is), in closed form.

    Items are taken as they lie in the gallery, as `rank_stability` takes them. With unit items the
    difference of two squared distances is linear in the query, so that it is exactly normal, and
    its sign is that of the difference on the sphere.

    Parameters
    ----------
    direction, variance : (D,) of the query z ~ N(direction, diag variance).
    items : (n, D) unit, nearest first.

    Returns
    -------
    (n - 1,), at least ½.
    """
    certain = np.zeros(1)
    unit = items.astype(np.float64)
    confidence = probability_ranks_above(
        DiagonalGaussian(direction.astype(np.float64), variance.astype(np.float64)),
        DiagonalGaussian(unit[:-1], certain),
        DiagonalGaussian(unit[1:], certain),
    )
    return np.maximum(confidence, 0.5)  # similarities are rounded before they are ordered


def rank_stability(similarities: NDArray[np.float32], k: int) -> NDArray[np.float64]:
    """Share of samples under which each item is among the ``k`` most similar.

    Parameters
    ----------
    similarities : (S, n), of S samples to n items.

    Returns
    -------
    (n,) in [0, 1]; all ones when ``k`` ≥ n. Items equal to the k-th count as in.
    """
    n = similarities.shape[1]
    if k >= n:
        return np.ones(n)
    kth_largest = np.partition(similarities, n - k, axis=1)[:, n - k, None]
    share: NDArray[np.float64] = (similarities >= kth_largest).mean(axis=0)
    return share
