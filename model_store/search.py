"""Two-stage probabilistic search: candidates once, predictive samples against the candidates.

Searching the gallery with every one of S predictive samples costs S searches. The samples lie
close to their mean, so what they find is among the mean's own candidates: one search, then one
small product of the samples with the candidates. The items are uncertain, too: see
`model_store.pairs`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.gallery import Allowed, Gallery
from model_store.pairs import Correlation, Pairs
from model_store.predictive import Predictive
from model_store.verdicts import Plan

N_CANDIDATES = 200
"""Number of items that the first stage fetches; the decision layer's signals are taken from
them."""


_ROUNDING = 1e-6
"""By so much may the product of two unit vectors of float32 be off: that of exact copies is not
quite 1."""


@dataclass(frozen=True, slots=True)
class Diversity:
    """The candidates that are left out of a list because a nearer one stands for them.

    Attributes
    ----------
    one_per_label : of each label the nearest item only; items without a label are all listed.
    duplicate_similarity : an item at least this similar to one that is listed is left out.
    """

    one_per_label: bool = False
    duplicate_similarity: float | None = None


EVERYTHING = Diversity()
"""Lists every candidate."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The candidates of one query, nearest first, and the list that is made of them.

    Attributes
    ----------
    rows : (n,) int64, positions in the gallery.
    similarities : (n,) float64, descending; equal ones by id.
    stds : (n,) standard deviation of each similarity, see `Pairs`.
    listed : (m,) int64, places among the candidates, ascending unless `reordered`; all of them, but
        for a `Diversity`.
    rank_stability : (m,) share of the samples of query and items under which a listed item is among
        the k nearest of the list.
    rank_confidence : (min(k, m - 1),) P(a listed item is nearer to the query than the next one).
    plan : see `Candidates`.
    """

    rows: NDArray[np.int64]
    similarities: NDArray[np.float64]
    stds: NDArray[np.float64]
    listed: NDArray[np.int64]
    rank_stability: NDArray[np.float64]
    rank_confidence: NDArray[np.float64]
    plan: Plan


def two_stage_search(
    gallery: Gallery,
    query: Predictive,
    k: int,
    n_candidates: int = N_CANDIDATES,
    exclude: int | None = None,
    allowed: Allowed | None = None,
    diversity: Diversity = EVERYTHING,
    *,
    noise: NDArray[np.float32],
    correlation: Correlation = (0.0, 1.0),
) -> Neighbours:
    """Find the items nearest to one query and how firmly each holds its place.

    Parameters
    ----------
    query : its mean direction alone orders the items; its samples and its variance say how firmly.
    k : the top of the list that `Neighbours.rank_stability` refers to.
    n_candidates : first stage; at least ``k`` are fetched.
    exclude : row of an item not to find, such as the one that the query is.
    allowed : the rows that may be found, for example by a filter; None for all.
    diversity : candidates that are not listed.
    noise : (S, n) standard normal, the same for all queries: of the items' own errors.
    correlation : see `correlation_of`.
    """
    n = max(n_candidates, k)
    found = gallery.candidates(query.direction[None], n + (exclude is not None), allowed)
    rows, similarities = found.rows[0], found.similarities[0]
    if exclude is not None:
        others = np.flatnonzero(rows != exclude)[:n]
        rows, similarities = rows[others], similarities[others]
    directions = gallery.directions(rows)
    pairs = pairs_of(gallery, query, rows, directions, similarities, correlation=correlation)
    listed = np.arange(len(rows))
    stds = pairs.std
    if diversity != EVERYTHING:
        listed = distinct(diversity, directions, gallery.label_codes(rows))
        directions, pairs = directions[listed], pairs.at(listed)
    return Neighbours(
        rows,
        similarities,
        stds,
        listed,
        _sampled_stability(pairs, query, directions, k, noise),
        pairs.nearer_than_next(query, directions[: k + 1]),
        found.plan,
    )


def _sampled_stability(
    pairs: Pairs,
    query: Predictive,
    directions: NDArray[np.float32],
    k: int,
    noise: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Return `rank_stability` of the listed items (m,); what cannot be near is not sampled."""
    n = len(directions)
    if k >= n:
        return np.ones(n)
    stability = np.zeros(n)
    near = slice(max(pairs.rivals(query, k), k + 1))
    stability[near] = rank_stability(pairs.at(near).sampled(query, directions[near], noise), k)
    return stability


def pairs_of(
    gallery: Gallery,
    query: Predictive,
    rows: NDArray[np.int64],
    directions: NDArray[np.float32],
    similarities: NDArray[np.float64],
    *,
    correlation: Correlation,
) -> Pairs:
    """Return a query and the items at ``rows`` (n,) as pairs.

    Parameters
    ----------
    directions, similarities : (n, D) and (n,) of these items.
    correlation : see `correlation_of`.
    """
    correlations = np.clip(correlation[0] + correlation[1] * similarities, 0, 1)
    return Pairs.of(query, directions, similarities, gallery.total_variances(rows), correlations)


def pair_uncertainty(
    gallery: Gallery,
    query: Predictive,
    nearest: NDArray[np.int64],
    *,
    correlation: Correlation,
) -> float | None:
    """Return `Pairs.first_order` of a query and its nearest item; None where nothing is known.

    Parameters
    ----------
    nearest : (1,) row of that item; (0,) of an empty gallery.
    correlation : see `correlation_of`.
    """
    if not query.has_uncertainty or not len(nearest):
        return None
    directions = gallery.directions(nearest)
    similarities = (directions @ query.direction).astype(np.float64)
    pair = pairs_of(gallery, query, nearest, directions, similarities, correlation=correlation)
    return float(pair.first_order[0])


def reordered(
    found: Neighbours,
    ranking: NDArray[np.int64],
    gallery: Gallery,
    query: Predictive,
    k: int,
    *,
    correlation: Correlation = (0.0, 1.0),
) -> Neighbours:
    """Return what was found with its list in another order.

    Parameters
    ----------
    ranking : (m,) places in ``found.listed``.
    k, correlation : as in the search.
    """
    listed = found.listed[ranking]
    top = listed[: k + 1]
    rows = found.rows[top]
    directions = gallery.directions(rows)
    pairs = pairs_of(
        gallery, query, rows, directions, found.similarities[top], correlation=correlation
    )
    return Neighbours(
        found.rows,
        found.similarities,
        found.stds,
        listed,
        found.rank_stability[ranking],
        pairs.nearer_than_next(query, directions),
        found.plan,
    )


def distinct(
    diversity: Diversity, directions: NDArray[np.float32], label_codes: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Places of those of n items, nearest first, that no nearer listed one stands for.

    Parameters
    ----------
    directions : (n, D) unit.
    label_codes : (n,), −1 without a label.
    """
    stands = np.zeros((len(directions), len(directions)), dtype=bool)
    if diversity.duplicate_similarity is not None:
        stands |= directions @ directions.T >= diversity.duplicate_similarity - _ROUNDING
    if diversity.one_per_label:
        stands |= (label_codes[:, None] == label_codes) & (label_codes >= 0)
    listed: list[int] = []
    for place, of in enumerate(stands):
        if not of[listed].any():
            listed.append(place)
    return np.array(listed, dtype=np.int64)


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
    kth_largest = np.sort(similarities, axis=1)[:, n - k, None]  # faster than a partition
    votes = np.add.reduce(similarities >= kth_largest, axis=0, dtype=np.int32)
    share: NDArray[np.float64] = votes / len(similarities)  # .mean(axis=0), in a third of its time
    return share
