"""Search the gallery of a task with an encoder; metrics and curves of the results.

The results of a search mark the true matches. The metrics of one method are computed from arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from index_builder import metrics
from index_builder.reproduction.protocols import Task
from index_builder.vectors.encoder import embed_all
from model_store.encoder.contract import Embeddings, Encoder
from model_store.predictive import N_SAMPLES
from model_store.search import N_CANDIDATES
from model_store.sphere import (
    base_noise,
    sample_projected_normal,
    spherical_variance,
    unit_direction,
)

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Bools = NDArray[np.bool_]
Result = dict[str, float | None]

_CHUNK = 256

_FEW_DIMENSIONS = 8
"""Maximum dimension for a tree search. In three dimensions, a tree search is 30 times faster than
computing all distances. The speed matters, because a consensus needs 100 searches."""


@dataclass(frozen=True, slots=True)
class RetrievalResults:
    """The queries of a task, with the first items of their result lists.

    Attributes
    ----------
    task : the searched task.
    queries, gallery : embeddings, without features.
    found : (B, n) gallery rows of the results, the nearest first; the query itself is left out.
    similarities : (B, n).
    matches : (B, n) whether each result is a true match.
    n_relevant : (B,) number of true matches in the gallery.
    """

    task: Task
    queries: Embeddings
    gallery: Embeddings
    found: Rows
    similarities: Floats
    matches: Bools
    n_relevant: Rows

    @property
    def correct(self) -> Bools:
        """Whether the first result of each query is correct, (B,)."""
        return self.matches[:, 0]

    @property
    def uncertainties(self) -> Floats:
        """Spherical variances of the queries, (B,)."""
        return spherical_variance(self.queries.mean, self.queries.variance)

    @property
    def neighbour_uncertainties(self) -> Floats:
        """Spherical variances of the first results, (B,)."""
        first = self.found[:, 0]
        return spherical_variance(self.gallery.mean[first], self.gallery.variance[first])


def search(encoder: Encoder, task: Task) -> RetrievalResults:
    """Embed the images of a task, and find the `N_CANDIDATES` nearest items of each query."""
    gallery = embed_all(encoder, task.gallery, "embedding the gallery")
    own = task.own_rows()
    if own is None:
        queries = embed_all(encoder, task.queries, "embedding the queries")
    else:
        queries = Embeddings(gallery.mean[own], gallery.variance[own], gallery.features[own])
    found, similarities = nearest(
        unit_direction(queries.mean), unit_direction(gallery.mean), N_CANDIDATES, own
    )
    matches = task.matches(found, np.arange(len(found)))
    return RetrievalResults(task, queries, gallery, found, similarities, matches, task.n_relevant())


def nearest(
    queries: NDArray[np.float32], gallery: NDArray[np.float32], n: int, own: Rows | None
) -> tuple[Rows, Floats]:
    """Return rows and similarities (B, n) of the most similar items, except the query itself."""
    n = min(n + (own is not None), len(gallery))
    similarities, found = _search(queries, gallery, n)
    if own is None:
        return found.astype(np.int64), similarities.astype(np.float64)
    kept = _others(found, own)
    shape = (len(queries), n - 1)
    return (
        found[kept].reshape(shape).astype(np.int64),
        similarities[kept].reshape(shape).astype(np.float64),
    )


def _others(found: Rows, own: Rows) -> Bools:
    """Return a mask (B, n) of the results to keep: all results except the query itself.

    If the results do not contain the query, the last result is left out.
    """
    kept: Bools = found != own[:, None]
    kept[kept.all(axis=1), -1] = False  # with many equally near items, the query may not be found
    return kept


def _search(
    queries: NDArray[np.float32], gallery: NDArray[np.float32], n: int
) -> tuple[Floats, Rows]:
    """Return similarities and rows (B, n) of the nearest unit vectors; the search is exact."""
    if gallery.shape[1] <= _FEW_DIMENSIONS:
        distances, rows = KDTree(gallery).query(queries, np.arange(1, n + 1))
        return 1 - np.square(distances) / 2, np.asarray(rows, dtype=np.int64)
    index = faiss.IndexFlatIP(gallery.shape[1])
    index.add(np.ascontiguousarray(gallery))
    similarities, found = index.search(np.ascontiguousarray(queries), n)
    return similarities, found


def full_matches(results: RetrievalResults, rows: Rows) -> Bools:
    """Rank the whole gallery for queries ``rows`` (b,); return a mask (b, n) of true matches."""
    gallery = unit_direction(results.gallery.mean)
    own = results.task.own_rows()
    n = len(gallery) - (own is not None)
    matches = np.empty((len(rows), n), dtype=bool)
    for start in range(0, len(rows), _CHUNK):
        chosen = rows[start : start + _CHUNK]
        similarities = unit_direction(results.queries.mean[chosen]) @ gallery.T
        if own is not None:
            similarities[np.arange(len(chosen)), own[chosen]] = -np.inf
        ranked = np.argsort(-similarities, axis=1, kind="stable")[:, :n]
        matches[start : start + len(chosen)] = results.task.matches(ranked, chosen)
    return matches


def euclidean_matches(results: RetrievalResults, n: int) -> Bools:
    """Rank by the Euclidean distance of embeddings that are not normalised; return true matches.

    The service ranks by direction only. A comparison of both rankings shows how much the lengths of
    embeddings help. The result is a mask (B, n).
    """
    own = results.task.own_rows()
    index = faiss.IndexFlatL2(results.gallery.mean.shape[1])
    index.add(np.ascontiguousarray(results.gallery.mean))
    n = min(n + (own is not None), len(results.gallery.mean))
    _, found = index.search(np.ascontiguousarray(results.queries.mean), n)
    if own is not None:
        found = found[_others(found, own)].reshape(len(found), n - 1)
    return results.task.matches(found, np.arange(len(found)))


def label_codes(task: Task) -> tuple[Rows, Rows]:
    """Return label codes of queries and gallery; -1 for a label that is not in the gallery."""
    names = {name: code for code, name in enumerate(sorted(set(task.gallery.labels)))}
    return (
        np.array([names.get(label, -1) for label in task.queries.labels]),
        np.array([names[label] for label in task.gallery.labels]),
    )


def consensus_of_queries(results: RetrievalResults, fingerprint: str) -> tuple[Floats, Bools]:
    """Return, for each query, the confidence and the correctness of its consensus: (B,) each.

    As in the service, 100 samples of a query vote; each sample votes for the label of the nearest
    candidate. The most frequent label is the consensus.
    """
    of_queries, of_gallery = label_codes(results.task)
    gallery = unit_direction(results.gallery.mean)
    noise = base_noise(fingerprint, N_SAMPLES, gallery.shape[1])
    votes = np.empty((N_SAMPLES, len(of_queries)), dtype=np.int64)
    for row, candidates in enumerate(results.found):
        samples = sample_projected_normal(
            results.queries.mean[row], results.queries.variance[row], noise
        )
        votes[:, row] = of_gallery[candidates[(samples @ gallery[candidates].T).argmax(axis=1)]]
    modes, confidences = metrics.consensus(votes)
    return confidences, modes == of_queries


def consensus_of_samples(
    task: Task, draws: Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]]
) -> tuple[Floats, Bools]:
    """Return the two arrays of `consensus_of_queries`, computed as in the authors' code.

    Each draw contains sampled embeddings of the queries and of the gallery.

    Parameters
    ----------
    draws : S pairs of arrays: embeddings (B, D) of the queries, and embeddings (N, D) of the
        gallery. The embeddings are not normalised.
    """
    of_queries, of_gallery = label_codes(task)
    own = task.own_rows()
    votes = []
    for queries, gallery in draws:
        found, _ = nearest(unit_direction(queries), unit_direction(gallery), 1, own)
        votes.append(of_gallery[found[:, 0]])
    modes, confidences = metrics.consensus(np.stack(votes))
    return confidences, modes == of_queries


def independent_draws(
    results: RetrievalResults, generator: np.random.Generator
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yield independently sampled embeddings, for posteriors that cannot sample last layers."""
    own = results.task.own_rows()

    def drawn(embeddings: Embeddings) -> NDArray[np.float32]:
        noise = generator.standard_normal(embeddings.mean.shape, dtype=np.float32)
        spread: NDArray[np.float32] = np.sqrt(embeddings.variance)
        return embeddings.mean + spread * noise

    for _ in range(N_SAMPLES):
        gallery = drawn(results.gallery)
        yield (drawn(results.queries) if own is None else gallery[own]), gallery


N_FULL = 1_000
"""Number of random queries for which the whole gallery is ranked; a ranking can have 60,000
items."""

N_STRUCTURE = 10_000
"""Maximum number of queries for metrics of the structure of the embedding."""

MAX_CLUSTERS = 1_000
"""Maximum number of labels for NMI. With more labels, k-means would take most of the time."""

N_POINTS = 120
"""Number of points of a curve on the page."""

N_BINS = 40
"""Number of bins of a histogram."""

FALSE_ALARMS = (0.01, 0.1)

RECALLS = (1, 2, 5, 10)
"""Ranks k of R@k."""


@dataclass(frozen=True, slots=True)
class Signals:
    """The uncertainties and scores of a method for B queries and for outliers.

    Attributes
    ----------
    uncertainties : (B,) uncertainty of the first result; None if the method has no uncertainty.
    outlier_scores : (B,) outlier scores of the queries; None if the method has no outlier score.
    scores_of_outliers : outlier scores of each kind of outlier; the key is the kind's name.
    confidences : (B,) predicted probability of an event; None if the method has no probabilities.
    outcomes : (B,) whether the predicted event occurred; None if ``confidences`` is None.
    acceptance : (B,) score for the open-set metrics: queries with a large score are accepted.
    acceptance_outliers : the same score for the outliers of the first kind.
    """

    uncertainties: Floats | None
    outlier_scores: Floats | None
    scores_of_outliers: Mapping[str, Floats]
    confidences: Floats | None
    outcomes: Bools | None
    acceptance: Floats
    acceptance_outliers: Floats


def of_ranking(results: RetrievalResults, seed: int) -> Result:
    """Return the metrics of the ranked lists and of the structure of the embedding."""
    some = np.random.default_rng(seed).permutation(len(results.found))
    full_rows = np.sort(some[:N_FULL])
    whole = full_matches(results, full_rows)
    relevant = results.n_relevant[full_rows]
    chosen = np.sort(some[:N_STRUCTURE])
    vectors = unit_direction(results.queries.mean[chosen])
    codes = label_codes(results.task)[0][chosen]
    clusters = None
    if len(np.unique(codes)) <= MAX_CLUSTERS:
        clusters = metrics.normalised_mutual_information(vectors, codes, seed)
    by_length = euclidean_matches(results, max(RECALLS))
    return {
        **{f"recall_at_{k}": metrics.recall_at_k(results.matches, k) for k in RECALLS},
        **{f"euclidean_recall_at_{k}": metrics.recall_at_k(by_length, k) for k in RECALLS},
        **{
            f"map_at_{k}": metrics.map_at_k(results.matches, results.n_relevant, k) for k in (5, 10)
        },
        "map_at_1000": metrics.map_at_k(whole, relevant, 1000),
        "map_at_r": metrics.map_at_r(whole, relevant),
        "average_precision": metrics.average_precision(whole),
        "nmi": clusters,
        "entropy": metrics.mean_nn_entropy(vectors),
        "feature_diversity": metrics.feature_diversity(vectors),
        "cluster_diversity": metrics.cluster_diversity(vectors, codes),
    }


def of_signals(signals: Signals, correct: Bools) -> Result:
    """Return the metrics for error detection, outlier detection, calibration and the open set."""
    result: Result = {}
    if signals.uncertainties is not None:
        result["error_auroc"] = metrics.error_auroc(signals.uncertainties, correct)
        result["ausc"] = metrics.ausc(signals.uncertainties, correct)
        result["aurc"] = metrics.aurc(signals.uncertainties, correct)
        result["augrc"] = metrics.augrc(signals.uncertainties, correct)
    if signals.confidences is not None and signals.outcomes is not None:
        result["ece"] = metrics.retrieval_calibration_error(signals.confidences, signals.outcomes)
        result["brier"] = metrics.brier(signals.confidences, signals.outcomes)
    if signals.outlier_scores is not None:
        for place, (name, scores) in enumerate(signals.scores_of_outliers.items()):
            end = "" if place == 0 else f": {name}"
            result[f"ood_auroc{end}"] = metrics.auroc(scores, signals.outlier_scores)
            result[f"ood_auprc{end}"] = metrics.auprc(scores, signals.outlier_scores)
            result[f"ood_fpr95{end}"] = metrics.fpr_at_tpr(scores, signals.outlier_scores)
    open_set = signals.acceptance, correct, signals.acceptance_outliers
    result["oscr"] = metrics.open_set_classification_rate(*open_set)
    for rate in FALSE_ALARMS:
        result[f"dir_at_far_{rate}"] = metrics.detection_and_identification_rate(*open_set, rate)
    return result


def curves(signals: Signals, correct: Bools) -> dict[str, Any]:
    """Return the curves of a report; each has at most `N_POINTS` points."""
    drawn: dict[str, Any] = {}
    if signals.confidences is not None and signals.outcomes is not None:
        bins = metrics.reliability_by_width(signals.confidences, signals.outcomes)
        drawn["reliability"] = [one.model_dump() for one in bins]
    if signals.uncertainties is not None:
        drawn["sparsification"] = _thinned(*metrics.sparsification(signals.uncertainties, correct))
        drawn["risk_coverage"] = _thinned(*metrics.risk_coverage(signals.uncertainties, correct))
    if signals.outlier_scores is not None:
        drawn["outliers"] = {
            name: {
                "roc": _thinned(*metrics.roc(scores, signals.outlier_scores)),
                "histogram": _histogram(signals.outlier_scores, scores),
            }
            for name, scores in signals.scores_of_outliers.items()
        }
    return drawn


def _thinned(x: Floats, y: Floats) -> list[list[float]]:
    """Return at most `N_POINTS` points of a curve, sorted by x, with its first and last point."""
    wanted = np.linspace(x[0], x[-1], N_POINTS)
    places = np.unique(np.r_[0, np.searchsorted(x, wanted).clip(max=len(x) - 1), len(x) - 1])
    return [
        [round(float(a), 5), round(float(b), 5)] for a, b in zip(x[places], y[places], strict=True)
    ]


def _histogram(ordinary: Floats, scores: Floats) -> dict[str, list[float]]:
    """Return histograms of the ranks of ordinary queries and of outliers, in equal bins.

    Ordinary queries and outliers are ranked together. Ranks are used because the uncertainties of
    different methods have different scales and long tails.
    """
    values = np.concatenate([ordinary, scores])
    ranks = np.searchsorted(np.sort(values), values, side="left") / max(len(values) - 1, 1)
    edges = np.linspace(0, 1, N_BINS + 1)
    return {
        name: (np.histogram(of_kind, edges)[0] / len(of_kind)).round(5).tolist()
        for name, of_kind in (
            ("ordinary", ranks[: len(ordinary)]),
            ("outliers", ranks[len(ordinary) :]),
        )
    }
