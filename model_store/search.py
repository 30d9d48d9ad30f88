"""Two-stage probabilistic search: one search for candidates, then predictive samples.

A search with each of S predictive samples would cost S searches of the gallery. But the samples are
close to their mean. So one search with the mean finds the neighbours of all samples as candidates.
A small matrix product of samples and candidates then ranks the candidates for each sample. The
embeddings of items are also uncertain; see `model_store.predictive`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.gallery import Allowed, Gallery
from model_store.messages import Plan
from model_store.predictive import AS_SIMILAR, Correlation, Noise, Pairs, Predictive

N_CANDIDATES = 200
"""Number of candidates of the first stage. The decision layer computes its signals from the
candidates."""


_ROUNDING = 1e-6
"""Maximum rounding error of the product of two float32 unit vectors. So the product of exact copies
may differ from 1."""


@dataclass(frozen=True, slots=True)
class Diversity:
    """The rule for leaving out candidates that are similar to a nearer candidate.

    Attributes
    ----------
    one_per_label : list only the nearest item of each label. All items without a label are listed.
    duplicate_similarity : leave out an item with at least this similarity to a listed item.
    """

    one_per_label: bool = False
    duplicate_similarity: float | None = None


EVERYTHING = Diversity()
"""The rule that lists every candidate."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The candidates of one query, nearest first. Some of these candidates form the result list.

    Attributes
    ----------
    rows : (n,) int64, positions in the gallery.
    similarities : (n,) float64, descending; candidates with equal similarities are ordered by id.
    pairs : pairs of the query with each of the n candidates.
    listed : (m,) int64, indexes of the listed candidates, ascending unless `reordered`. Without a
        `Diversity`, all candidates are listed.
    rank_stability : (m,) share of samples (of query and items) in which a listed item is among the
        k nearest listed items.
    rank_confidence : (min(k, m - 1),) P(a listed item is nearer to the query than the next listed
        item).
    plan : see `Candidates`.
    """

    rows: NDArray[np.int64]
    similarities: NDArray[np.float64]
    pairs: Pairs
    listed: NDArray[np.int64]
    rank_stability: NDArray[np.float64]
    rank_confidence: NDArray[np.float64]
    plan: Plan

    @property
    def uncertainty(self) -> float | None:
        """`Pairs.first_order` of the query and its nearest candidate; None without candidates."""
        return float(self.pairs.first_order[0]) if len(self.rows) else None


def two_stage_search(
    gallery: Gallery,
    query: Predictive,
    k: int,
    n_candidates: int = N_CANDIDATES,
    exclude: int | None = None,
    allowed: Allowed | None = None,
    diversity: Diversity = EVERYTHING,
    *,
    noise: Noise,
    correlation: Correlation = AS_SIMILAR,
) -> Neighbours:
    """Find the items nearest to one query, and the stability of their ranks.

    Parameters
    ----------
    query : query; its mean direction orders the items, and its variance determines the stability.
    k : number of nearest items for `Neighbours.rank_stability`.
    n_candidates : number of candidates of the first stage; at least ``k`` are fetched.
    exclude : row of an item to leave out, for example the query itself.
    allowed : the rows that may be found, for example the rows that pass a filter; None for all.
    diversity : rule for leaving out candidates.
    noise : noise for the samples of the query and of at least n items.
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
    listed, of_listed = np.arange(len(rows)), pairs
    if diversity != EVERYTHING:
        listed = distinct(diversity, directions, gallery.label_codes(rows))
        directions, of_listed = directions[listed], pairs.at(listed)
    stability = np.ones(len(listed))
    if k < len(listed):  # only items near the top k are sampled
        n_near = max(of_listed.rivals(query, k), k + 1)
        drawn = of_listed.sampled(query, directions[:n_near], noise)
        stability[:n_near], stability[n_near:] = rank_stability(drawn, k), 0
    return Neighbours(
        rows,
        similarities,
        pairs,
        listed,
        stability,
        of_listed.nearer_than_next(query, directions[: k + 1]),
        found.plan,
    )


def pairs_of(
    gallery: Gallery,
    query: Predictive,
    rows: NDArray[np.int64],
    directions: NDArray[np.float32],
    similarities: NDArray[np.float64],
    *,
    correlation: Correlation,
) -> Pairs:
    """Return the pairs of a query with the items at ``rows`` (n,).

    Parameters
    ----------
    directions : (n, D) directions of these items.
    similarities : (n,) similarities of these items.
    correlation : see `correlation_of`.
    """
    totals = gallery.total_variances(rows)
    correlations = correlation.of(similarities, float(np.add.reduce(query.variance)), totals)
    return Pairs.of(query, directions, similarities, totals, correlations)


def pair_uncertainty(
    gallery: Gallery,
    query: Predictive,
    nearest: NDArray[np.int64],
    similarities: NDArray[np.float64],
    *,
    correlation: Correlation,
) -> float | None:
    """Return `Pairs.first_order` of a query and its nearest item; None if it is not known.

    Parameters
    ----------
    nearest : (1,) row of the nearest item; (0,) for an empty gallery.
    similarities : (1,) similarity of the nearest item; (0,) for an empty gallery.
    correlation : see `correlation_of`.
    """
    if not query.has_uncertainty or not len(nearest):
        return None
    directions = gallery.directions(nearest)
    pair = pairs_of(gallery, query, nearest, directions, similarities, correlation=correlation)
    return float(pair.first_order[0])


def reordered(
    found: Neighbours,
    ranking: NDArray[np.int64],
    gallery: Gallery,
    query: Predictive,
    k: int,
) -> Neighbours:
    """Return ``found`` with the result list in the order ``ranking``.

    Parameters
    ----------
    ranking : (m,) indexes into ``found.listed``, in the new order.
    k : see `two_stage_search`.
    """
    listed = found.listed[ranking]
    top = listed[: k + 1]
    return Neighbours(
        found.rows,
        found.similarities,
        found.pairs,
        listed,
        found.rank_stability[ranking],
        found.pairs.at(top).nearer_than_next(query, gallery.directions(found.rows[top])),
        found.plan,
    )


def distinct(
    diversity: Diversity, directions: NDArray[np.float32], label_codes: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return the indexes of the items that are not similar to a nearer listed item.

    Parameters
    ----------
    directions : (n, D) unit vectors of the items, nearest first.
    label_codes : (n,) label codes; −1 without a label.
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
    """Return, for each item, the share of samples in which this item is among the ``k`` nearest.

    Parameters
    ----------
    similarities : (S, n) similarities of S samples and n items.

    Returns
    -------
    (n,) in [0, 1]; all ones if ``k`` ≥ n. An item that is as similar as the k-th item counts as
    included.
    """
    n = similarities.shape[1]
    if k >= n:
        return np.ones(n)
    kth_largest = np.sort(similarities, axis=1)[:, n - k, None]  # faster than a partition
    votes = np.add.reduce(similarities >= kth_largest, axis=0, dtype=np.int32)
    share: NDArray[np.float64] = votes / len(similarities)  # .mean(axis=0), but three times as fast
    return share
