"""Searches the gallery with calibration queries; returns signals and candidates.

Hiding the label from the result list is not enough: an outlier detector that was fitted to images
of the label would give the query a low score. So each query is scored by a detector that was fitted
without the query's label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.progress import console
from index_builder.vectors.encoder import embedded
from index_builder.vectors.images import Seen
from model_store.decision import LabelMeans, OutlierDetector, labels_found, signals
from model_store.decision.outliers import label_sums, unit_rows
from model_store.encoder.contract import Embeddings, Encoder
from model_store.errors import DatasetError
from model_store.gallery import Gallery, MaskedRows
from model_store.gallery.entities import parts_of
from model_store.predictive import INDEPENDENT, Correlation, correlation_of, predict
from model_store.search import N_CANDIDATES, pair_uncertainty
from model_store.table import Table
from model_store.truth import SameLabel, Truth, Within, wgs84

from .detector import MIN_REFERENCES, fit_detectors, scores_by_fold
from .item_queries import CrossFittedLayers

N_FOLDS = 20
"""Maximum number of label folds. A detector fitted without a fold lacks all labels of the fold, not
only the query's label. So the outlier scores of queries with a hidden label are higher than the
scores of truly absent queries in the service. With 15 labels of Caltech-101 in ten folds, truly
absent queries got a match 1.23 times as often as queries with a hidden label. With 15 folds instead
of ten, the factor was 1.10."""


@dataclass(frozen=True, slots=True)
class LabelFolds:
    """Outlier detectors of a gallery; each was fitted without some of the gallery's labels.

    Attributes
    ----------
    fold_of : for each label, the index of the detector that was fitted without this label.
    detectors : one detector per fold; None if the labels outside the fold have too few images.
    """

    fold_of: Mapping[str, int]
    detectors: tuple[OutlierDetector | None, ...]

    def of(self, labels: Sequence[str], names: Sequence[str]) -> LabelFolds:
        """Return a copy for other labels, in which ``labels[i]`` has the fold of ``names[i]``."""
        folds = [self.fold_of[name] for name in names]
        return replace(self, fold_of=dict(zip(labels, folds, strict=True)))

    def known(self, labels: Sequence[str]) -> NDArray[np.bool_]:
        """Return a mask (B,) of the ``labels`` for which a detector exists."""
        return np.array(
            [self.detectors[self.fold_of.get(label, 0)] is not None for label in labels]
        )

    def scores(self, embeddings: Embeddings, labels: Sequence[str]) -> NDArray[np.float64]:
        """Return each query's outlier score (B,) from a detector fitted without the query's label.

        The score is NaN if no such detector exists.
        """
        folds = np.array([self.fold_of.get(label, 0) for label in labels], dtype=np.int64)
        return scores_by_fold(self.detectors, embeddings, folds)


def fit_label_folds(
    embeddings: Embeddings,
    labels: Sequence[str],
    seed: int,
    n_folds: int = N_FOLDS,
    layers: CrossFittedLayers | None = None,
) -> LabelFolds:
    """Fit detectors to gallery images; each detector leaves out one fold of the labels.

    Parameters
    ----------
    embeddings : embeddings of N gallery images in random order.
    labels : N labels of these images.
    seed : seed of the folds.
    layers : last layers, each fitted without one fold of the labels; the detectors have their
        folds, and compare the embeddings of their layers. None if no layer was fitted to the items.
    """
    names, codes = np.unique(np.array(labels), return_inverse=True)
    folds = np.random.default_rng(seed).permutation(len(names)) % min(n_folds, len(names))
    if layers is not None:
        folds = layers.of_labels(names.tolist())
    kept = [np.flatnonzero(folds[codes] != fold) for fold in range(int(folds.max()) + 1)]
    enough = [len(rows) >= MIN_REFERENCES for rows in kept]
    subsets = [rows for rows, held in zip(kept, enough, strict=True) if held]
    weights = None if layers is None else [layers.weights[fold] for fold in np.flatnonzero(enough)]
    fitted = fit_detectors(embeddings, codes, subsets, weights)
    detectors = tuple(next(fitted) if held else None for held in enough)
    return LabelFolds(dict(zip(names.tolist(), folds.tolist(), strict=True)), detectors)


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


LATITUDE, LONGITUDE = "latitude", "longitude"
"""Metadata fields with the place of an item: WGS84 coordinates in degrees."""

N_PLACES = 10_000
"""Number of items whose metadata are read together."""

BATCH = 128
"""Number of queries that are searched together."""


def are_items(
    gallery: Gallery, directions: NDArray[np.float32], tolerance: float = 1e-5
) -> NDArray[np.bool_]:
    """Return a mask (B,): True for a query whose embedding is equal to an item's embedding.

    Such a query finds itself, and does not show how similar a new photograph is.

    Parameters
    ----------
    directions : (B, D) unit directions of the queries.
    tolerance : maximum difference of each component, because another batch rounds otherwise. A
        limit of the similarity is no substitute: with few dimensions, other images are within it.
    """
    found = np.zeros(len(directions), dtype=bool)
    for start in range(0, len(directions), BATCH):
        rows = slice(start, start + BATCH)
        nearest = gallery.directions(gallery.candidates(directions[rows], 1).rows)  # (B, 0 or 1, D)
        differences = np.abs(nearest - directions[rows, None])
        found[rows] = (differences <= tolerance).all(axis=2).any(axis=1)
    return found


def say_left_out(n: int) -> None:
    """Print the number of queries that `are_items` has found, if there are any."""
    if n:
        console.print(
            f"left out: {n:,} queries that are equal to an item of the gallery, because such a "
            "query finds itself",
            soft_wrap=True,
        )


@dataclass(frozen=True, slots=True)
class RetrievedQueries(Table):
    """The signals and candidates of B queries.

    Attributes
    ----------
    spherical_variances : (B,) spherical variances of the embeddings.
    similarity_stds : (B,), see `Assessment.uncertainty`; NaN without a candidate, or if the query's
        label is hidden.
    outlier_scores : (B,), see `OutlierDetector.scores`.
    similarities : (B, n) similarities of the candidates.
    label_codes : (B, n) label codes of the candidates.
    mean_similarities : (B, n) similarity of the query to the mean direction of each candidate's
        label, see `LabelMeans.similarities`.
    matches : (B, n) whether each candidate is a true match.
    codes : (B,) code of each query's own label. If the gallery does not contain the label, the code
        is −2 or smaller.
    own_sizes : (B,) number of items of the query's own label; 0 if the label is hidden or unknown.
        The items that are hidden from the query count, too: a served label has all its items.
    found_sizes : (B, n) number of items of each candidate's label; 1 without a label.
    """

    spherical_variances: Floats
    similarity_stds: Floats
    outlier_scores: Floats
    similarities: Floats
    label_codes: NDArray[np.int32]
    mean_similarities: Floats
    matches: NDArray[np.bool_]
    codes: NDArray[np.int32]
    own_sizes: Integers
    found_sizes: Integers

    def first(self, n: int) -> RetrievedQueries:
        """Return the queries with only the first ``n`` candidates of each query."""
        return replace(
            self,
            similarities=self.similarities[:, :n],
            label_codes=self.label_codes[:, :n],
            mean_similarities=self.mean_similarities[:, :n],
            matches=self.matches[:, :n],
            found_sizes=self.found_sizes[:, :n],
        )

    def signals(self, row: int) -> tuple[Integers, Floats]:
        """Return positions (g,) of the labels that one query finds, and their signals (g, S)."""
        places, _ = labels_found(self.label_codes[row])
        return places, signals(
            self.similarities[row],
            places,
            self.mean_similarities[row, places],
            float(self.outlier_scores[row]),
        )


def observe(
    encoder: Encoder,
    gallery: Gallery,
    detector: OutlierDetector,
    means: LabelMeans,
    queries: LabelledImages,
    n: int = N_CANDIDATES,
    seen: Seen | None = None,
    within: float | None = None,
) -> RetrievedQueries:
    """Embed ``queries`` in batches, and find ``n`` candidates for each query.

    In a gallery without labels, the label of a query is the id of the item that the query shows.

    Parameters
    ----------
    seen : callback for each query that is decoded.
    within : maximum distance in metres between a query and a match; None if labels define matches.
    """
    variance = np.empty((len(queries), encoder.dim), dtype=np.float32)
    mean = np.empty_like(variance)
    scores = np.empty(len(queries))
    for positions, embeddings in embedded(encoder, queries, "calibration queries", seen):
        mean[positions], variance[positions] = embeddings.mean, embeddings.variance
        scores[positions] = detector.scores(embeddings)
    found = Embeddings(mean, variance, np.empty((len(queries), 0), dtype=np.float32))
    return look_up(
        *(gallery, means, queries.labels, found, scores, n),
        within=nearby(gallery, queries, within),
        correlation=correlation_of(encoder.metadata),
    )


def nearby(gallery: Gallery, queries: LabelledImages, within: float | None) -> Within | None:
    """Return the rule for matches by distance; None if labels define the matches."""
    if within is None or queries.places is None:
        return None
    return Within(queries.places, places_of_items(gallery), within)


def places_of_items(gallery: Gallery) -> Floats:
    """Return the coordinates (N, 3) of all rows, from the items' metadata; NaN if not known."""
    degrees = np.full((gallery.n_rows, 2), np.nan)
    for rows in parts_of(gallery.rows(), N_PLACES):
        for row, item in zip(rows, gallery.items(rows), strict=True):
            place = place_in(item.metadata, f"the item {item.id!r}")
            if place is not None:
                degrees[row] = place
    return wgs84(*degrees.T)


def place_in(metadata: Mapping[str, Any], origin: str) -> tuple[float, float] | None:
    """Return latitude and longitude in degrees from metadata; None if both are missing.

    Raises
    ------
    DatasetError : only one value is given, or a value is not a number of degrees in its range.
    """
    found = metadata.get(LATITUDE), metadata.get(LONGITUDE)
    if found == (None, None):
        return None
    for value, most in zip(found, (90, 180), strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
            raise DatasetError(
                f"{origin}: {LATITUDE} and {LONGITUDE} are {found}; wanted degrees, −90 to 90 and "
                "−180 to 180."
            )
    return float(found[0]), float(found[1])  # type: ignore[arg-type] # looked at above


def look_up(
    gallery: Gallery,
    means: LabelMeans,
    labels: Sequence[str],
    embeddings: Embeddings,
    outlier_scores: Floats,
    n: int = N_CANDIDATES,
    *,
    hide_label: bool = False,
    hidden: Integers | None = None,
    objects: Integers | None = None,
    within: Within | None = None,
    among: NDArray[np.bool_] | None = None,
    correlation: Correlation = INDEPENDENT,
) -> RetrievedQueries:
    """Find ``n`` candidates for each of B embedded queries.

    Parameters
    ----------
    labels : (B,) label of each query. The gallery need not contain these labels.
    outlier_scores : (B,) outlier score of each query. The detector that gave the score must have
        been fitted without the hidden items and labels.
    hide_label : whether to hide all items of each query's own label, to make the query absent.
    hidden : (B, m) rows of items to exclude from each query's results, for example the query
        itself; padded with −1.
    objects : (N,) object number of each item; only in a gallery without labels. All items of an
        object are hidden together.
    within : rule for matches by distance; None if labels define matches.
    among : (N,) mask of the items that can be found; None for all items.
    correlation : see `correlation_of`.
    """
    item_codes, codes = _codes(gallery, labels)
    truth: Truth = SameLabel(codes, item_codes) if within is None else within
    directions = embeddings.directions
    n = min(n, gallery.n_items)
    if hide_label:  # if the query is an item, this also hides that item
        rows, similarities = _without_own_label(gallery, directions, n, item_codes, codes, objects)
    elif among is not None:
        rows, similarities = _among(gallery, directions, n, among)
    else:
        rows, similarities = _without(gallery, directions, n, hidden)
    label_codes = item_codes[rows]
    of_means = similarities
    if gallery.labels:
        of_means = np.empty_like(similarities)
        for row, direction in enumerate(directions):
            of_means[row] = means.similarities(direction, label_codes[row], similarities[row])
        if hidden is not None and not hide_label:
            rest = _means_without(gallery, item_codes, codes, hidden)
            without = np.einsum("bd,bd->b", directions, rest)[:, None]
            of_means = np.where(label_codes == codes[:, None], without, of_means)
    of_own = _items_of_labels(item_codes, codes, unknown=0)
    # The calibration uses the uncertainties of matched queries only.
    nearest = slice(0, 0 if hide_label else 1)
    return RetrievedQueries(
        embeddings.spherical_variances,
        _stds_of_nearest(
            *(gallery, embeddings, rows[:, nearest], similarities[:, nearest]),
            correlation=correlation,
        ),
        outlier_scores,
        similarities,
        label_codes,
        of_means,
        truth.matches(np.arange(len(labels)), rows),
        codes,
        np.zeros_like(of_own) if hide_label else of_own,
        _items_of_labels(item_codes, label_codes, unknown=1),
    )


def _stds_of_nearest(
    gallery: Gallery,
    embeddings: Embeddings,
    rows: Integers,
    similarities: Floats,
    *,
    correlation: Correlation,
) -> Floats:
    """Return `Assessment.uncertainty` (B,) of each query; 0 without a variance.

    Parameters
    ----------
    rows : (B, 1) row of each query's first candidate; (B, 0) without candidates.
    similarities : (B, 1) or (B, 0) similarity of this candidate.
    """
    if not rows.shape[1]:
        return np.full(len(rows), np.nan)
    queries = predict(embeddings, np.full(len(rows), np.nan))
    found = [
        pair_uncertainty(gallery, query, *nearest, correlation=correlation)
        for query, *nearest in zip(queries, rows, similarities, strict=True)
    ]
    return np.array([one or 0 for one in found], dtype=float)


def look_up_hidden(
    gallery: Gallery,
    means: LabelMeans,
    labels: Sequence[str],
    embeddings: Embeddings,
    folds: LabelFolds,
    n: int,
    objects: Integers | None = None,
) -> tuple[RetrievedQueries, Integers]:
    """Find candidates for embedded queries; hide the label of each query.

    A query is left out if too few items remain for its result list, or if no detector was fitted
    without the query's label. The function also returns the rows (n,) of the queries that were not
    left out.

    Parameters
    ----------
    folds : detectors; each was fitted without some labels.
    n, objects : see `look_up`.
    """
    item_codes, codes = _codes(gallery, labels)
    enough = gallery.n_items - _items_of_labels(item_codes, codes, unknown=0) >= n
    kept = np.flatnonzero(folds.known(labels) & enough)
    some, of_some = [labels[row] for row in kept.tolist()], embeddings.at(kept)
    scores = folds.scores(of_some, some)
    hidden = look_up(*(gallery, means, some, of_some, scores, n), hide_label=True, objects=objects)
    return hidden, kept


def _without_own_label(
    gallery: Gallery,
    directions: NDArray[np.float32],
    n: int,
    item_codes: NDArray[np.int32],
    codes: NDArray[np.int32],
    objects: Integers | None,
) -> tuple[Integers, Floats]:
    """Return rows and similarities (B, n) of candidates whose label is not the query's label."""
    rows = np.empty((len(directions), n), dtype=np.int64)
    similarities = np.empty((len(directions), n))
    for code in np.unique(codes):
        chosen = np.flatnonzero(codes == code)
        others = item_codes != code
        if objects is not None and code >= 0:  # the code of an unlabelled item is its row
            others = objects != objects[code]
        rows[chosen], similarities[chosen] = _among(gallery, directions[chosen], n, others)
    return rows, similarities


def _among(
    gallery: Gallery, directions: NDArray[np.float32], n: int, among: NDArray[np.bool_]
) -> tuple[Integers, Floats]:
    """Return rows and similarities (B, n) of candidates that the mask ``among`` (N,) selects."""
    found = gallery.candidates(directions, min(n, int(among.sum())), MaskedRows(among))
    return found.rows, found.similarities


def _without(
    gallery: Gallery, directions: NDArray[np.float32], n: int, hidden: Integers | None
) -> tuple[Integers, Floats]:
    """Return rows and similarities (B, n) of candidates; exclude the rows ``hidden`` (B, m)."""
    rows = np.empty((len(directions), n), dtype=np.int64)
    similarities = np.empty((len(directions), n))
    for start in range(0, len(directions), BATCH):
        chosen = np.arange(start, min(start + BATCH, len(directions)))
        unwanted = np.empty((len(chosen), 0)) if hidden is None else hidden[chosen]
        found = gallery.candidates(directions[chosen], n + unwanted.shape[1])
        dropped = (found.rows[:, :, None] == unwanted[:, None, :]).any(axis=2)
        kept = np.argsort(dropped, axis=1, kind="stable")[:, :n]  # keeps the order, nearest first
        similarities[chosen] = np.take_along_axis(found.similarities, kept, axis=1)
        rows[chosen] = np.take_along_axis(found.rows, kept, axis=1)
    return rows, similarities


def _items_of_labels(
    item_codes: NDArray[np.int32], codes: NDArray[np.int32], unknown: int
) -> Integers:
    """Return the number of items with each code in ``codes``; ``unknown`` for a negative code."""
    counts = np.bincount(item_codes[item_codes >= 0], minlength=int(codes.max(initial=0)) + 1)
    return np.where(codes >= 0, counts[np.maximum(codes, 0)], unknown)


def _means_without(
    gallery: Gallery,
    item_codes: NDArray[np.int32],
    codes: NDArray[np.int32],
    hidden: Integers,
) -> NDArray[np.float32]:
    """Return the mean direction (B, D) of each query's label without the ``hidden`` items (B, m).

    A row is zero if all items of the query's label are hidden.
    """
    rest = label_sums(gallery, item_codes)[codes]
    for column in hidden.T:
        own = np.flatnonzero((column >= 0) & (item_codes[column] == codes))
        rest[own] -= gallery.directions(column[own])
    return unit_rows(rest.astype(np.float32))


def _codes(gallery: Gallery, labels: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the codes of all items, and of the queries; equal codes mean equal labels."""
    rows = np.arange(gallery.n_items)
    if gallery.labels:
        names, item_codes = list(gallery.labels), gallery.label_codes(rows)
    else:
        names = [item.id for item in gallery.items(rows)]
        item_codes = rows.astype(np.int32)
    code_of = {name: code for code, name in enumerate(names)}
    unknown = sorted(set(labels) - code_of.keys())
    code_of |= {name: -2 - place for place, name in enumerate(unknown)}
    return item_codes, np.array([code_of[label] for label in labels], dtype=np.int32)
