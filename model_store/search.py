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
    """

    rows: NDArray[np.int64]
    similarities: NDArray[np.float64]
    rank_stability: NDArray[np.float64]


def two_stage_search(
    gallery: Gallery,
    direction: NDArray[np.float32],
    samples: NDArray[np.float32],
    k: int,
    n_candidates: int = N_CANDIDATES,
) -> Neighbours:
    """Find the items nearest to one query and how firmly each holds its place.

    Parameters
    ----------
    direction : (D,) unit, the query's mean direction: it alone orders the items.
    samples : (S, D) unit, predictive samples of the query.
    k : the top of the list that `Neighbours.rank_stability` refers to.
    n_candidates : first stage; at least ``k`` are fetched.
    """
    found = gallery.candidates(direction[None], max(n_candidates, k))
    rows = found.rows[0]
    stability = rank_stability(samples @ gallery.directions(rows).T, k)
    return Neighbours(rows, found.similarities[0], stability)


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
