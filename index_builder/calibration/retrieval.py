"""Searches the gallery with calibration queries; returns signals and candidates.

Hiding the label from the result list is not enough: an outlier detector that was fitted to images
of the label would give the query a low score. So each query is scored by a detector that was fitted
without the query's label.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.progress import console
from index_builder.vectors.encoder import embed_with_features, embedded
from index_builder.vectors.images import Seen
from model_store.decision import (
    Hierarchy,
    LabelMeans,
    OutlierDetector,
    label_means,
    labels_found,
    signals,
    size_classes,
)
from model_store.decision.outliers import label_sums, unit_rows
from model_store.encoder.contract import Embeddings, Encoder, EncoderMetadata, TextEncoder
from model_store.gallery import Gallery, MaskedRows
from model_store.gallery.entities import parts_of
from model_store.predictive import INDEPENDENT, Correlation, correlation_of, predict
from model_store.search import N_CANDIDATES, pair_uncertainty
from model_store.table import Table
from model_store.truth import SameLabel, Truth, Within, place_codes, positions_of

from .detector import MIN_REFERENCES, fit_detector, fit_detectors, scores_by_fold
from .item_queries import CrossFittedLayers

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

N_FOLDS = 20
"""Maximum number of label folds. A detector fitted without a fold lacks all labels of the fold, not
only the query's label. So the outlier scores of queries with a hidden label are higher than the
scores of truly absent queries in the service. With 15 labels of Caltech-101 in ten folds, truly
absent queries got a match 1.23 times as often as queries with a hidden label. With 15 folds instead
of ten, the factor was 1.10."""


@dataclass(frozen=True, slots=True)
class TruthRule:
    """The rule for a true match.

    Attributes
    ----------
    hierarchy : parents of labels; None without parents.
    within : maximum distance in metres between a query and a match; None if labels define matches.
    """

    hierarchy: Hierarchy | None = None
    within: float | None = None


BY_LABEL = TruthRule()
"""The rule for labels without parents: an item is a match if it has the query's label."""


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
    label_codes : (B, n) label codes of the candidates; see `place_codes` if matches are defined by
        distance.
    mean_similarities : (B, n) similarity of the query to the mean direction of each candidate's
        label, see `LabelMeans.similarities`.
    matches : (B, n) whether each candidate is a true match.
    codes : (B,) code of each query's own label. If the gallery does not contain the label, the code
        is −2 or smaller.
    own_sizes : (B,) number of items of the query's own label; 0 if the label is hidden or unknown.
        The items that are hidden from the query count, too: a served label has all its items.
    found_sizes : (B, n) number of items of each candidate's label; 1 without a label.
    positions : (B, n, 3) positions of the candidates in metres, NaN if not known; None if labels
        define matches.
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
    positions: Floats | None = None

    def first(self, n: int) -> RetrievedQueries:
        """Return the queries with only the first ``n`` candidates of each query."""
        return replace(
            self,
            similarities=self.similarities[:, :n],
            label_codes=self.label_codes[:, :n],
            mean_similarities=self.mean_similarities[:, :n],
            matches=self.matches[:, :n],
            found_sizes=self.found_sizes[:, :n],
            positions=None if self.positions is None else self.positions[:, :n],
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


def nearby(gallery: Gallery, queries: LabelledImages, within: float | None) -> Within | None:
    """Return the rule for matches by distance; None if labels define the matches."""
    if within is None or queries.places is None:
        return None
    return Within(queries.places, places_of_items(gallery), within)


def places_of_items(gallery: Gallery, invalid: list[str] | None = None) -> Floats:
    """Return the positions (N, 3) of all rows, from the items' metadata; NaN if not known.

    Parameters
    ----------
    invalid : receives a message for each item with an invalid position, which is then not known.
    """
    invalid = [] if invalid is None else invalid
    positions = np.full((gallery.n_rows, 3), np.nan)
    for rows in parts_of(gallery.rows(), N_PLACES):
        items = gallery.items(rows)
        origins = [f"the item {item.id!r}" for item in items]
        positions[rows] = positions_of([item.metadata for item in items], origins, invalid)
    return positions


PARTS = 4
"""If labels are hidden, a result list has at most 1 / `PARTS` of the gallery's items. If a label is
hidden, its items cannot be found, and other items take their places. Without this limit, some of
these replacements would be too dissimilar for a result list of the service."""

LEAST_LISTED = 10
"""Minimum length of a result list in a small gallery."""


def objects_of(gallery: Gallery, images: LabelledImages) -> NDArray[np.int64] | None:
    """Return the object number (n_items,) of each item; None if no two items share an object.

    To make a view an absent query, all copies and near-duplicates of the original picture must be
    hidden.

    Parameters
    ----------
    images : gallery images, with groups if known.
    """
    if images.groups is None or len(set(images.groups)) == len(images):
        return None
    numbers = np.arange(gallery.n_items)
    row_of = {item.id: row for row, item in enumerate(gallery.items(numbers))}
    first: dict[str, int] = {}
    for name, group in zip(images.ids, images.groups, strict=True):
        numbers[row_of[name]] = first.setdefault(group, row_of[name])
    return numbers


def list_length(gallery: Gallery, n_hidden: int, *, hide_labels: bool) -> int:
    """Return a result list length that every query can fill, even if the query's label is hidden.

    Parameters
    ----------
    n_hidden : maximum number of items hidden from a query, apart from items of the query's label.
    """
    if not hide_labels:
        return min(N_CANDIDATES, gallery.n_items - n_hidden)
    codes = gallery.label_codes(np.arange(gallery.n_items))
    counts = np.bincount(codes[codes >= 0]) if gallery.labels else np.ones(1, dtype=np.int64)
    return _length_without_label(counts, gallery.n_items, n_hidden)


def _length_without_label(counts: Integers, n_items: int, n_hidden: int) -> int:
    """Return the length of result lists if the label of each query is hidden.

    The result list can contain only the remaining items. If a label with more than half of the
    gallery's items were hidden, few items would remain. Such a label does not shorten the lists; if
    the remaining items do not fill a list, queries of the label do not become absent queries.

    Parameters
    ----------
    counts : (C,) number of items of each label.
    n_hidden : see `list_length`.
    """
    n_hidden = max(n_hidden, int(counts[counts <= n_items // 2].max(initial=0)))
    return min(N_CANDIDATES, max(n_items // PARTS, LEAST_LISTED), n_items - n_hidden)


def hideable(counts: Integers, n_items: int) -> NDArray[np.bool_]:
    """Return a mask (C,) of the labels whose queries can become absent queries.

    If such a label is hidden, the remaining items fill a result list.

    Parameters
    ----------
    counts : (C,) number of items of each label.
    n_items : number of items of the gallery, including the items without a label.
    """
    enough: NDArray[np.bool_] = n_items - counts >= _length_without_label(counts, n_items, 0)
    return enough


@dataclass(frozen=True, slots=True)
class Earlier:
    """The part of a gallery that existed when the absent queries were chosen.

    After an addition, the gallery can contain the true label of an absent query. For example,
    photographs of a lynx are absent queries, because no item shows a lynx. If items that show a
    lynx are added later, the photographs are still absent queries, because only the earlier part of
    the gallery is searched.

    Attributes
    ----------
    rows : (N,) mask of the items that have no label, or a label that existed at that time.
    detector : outlier detector fitted to images of the earlier labels only.
    rivals : ratio of the current number of labels to the earlier number of labels.
    """

    rows: NDArray[np.bool_]
    detector: OutlierDetector
    rivals: float

    @classmethod
    def of(
        cls,
        gallery: Gallery,
        images: LabelledImages,
        embeddings: Embeddings,
        labels: Collection[str],
    ) -> Earlier | None:
        """Leave out the labels that were added later.

        Return None if no label was added later, if the earlier labels are unknown, or if too few
        images remain.

        Parameters
        ----------
        images, embeddings : a random sample of the gallery, in random order.
        labels : the labels that the gallery had when the absent queries were chosen; empty if
            unknown.
        """
        known = set(labels)
        held = np.array([label in known for label in gallery.labels], dtype=bool)
        if not known or held.all():
            return None
        codes = gallery.label_codes(np.arange(gallery.n_items))
        kept = np.flatnonzero([label in known for label in images.labels])
        if len(kept) < MIN_REFERENCES:
            return None
        detector = fit_detector(embeddings.at(kept), images.label_codes()[kept])
        rows = np.where(codes >= 0, held[codes], True)
        return cls(rows, detector, len(held) / int(held.sum()))


@dataclass(frozen=True, slots=True)
class CalibratedGallery:
    """The gallery that a calibration is fitted for, with models to search it with queries.

    Attributes
    ----------
    encoder_fingerprint : fingerprint of the encoder.
    gallery : the gallery.
    detector : the outlier detector, fitted to the gallery's images.
    means : the mean direction of each label.
    n_candidates : length of every result list.
    correlation : see `correlation_of`.
    rule : the rule for a match, and the parents of labels.
    label_folds : detectors; each was fitted without some labels. None if no labels are hidden.
    objects : (N,) object number of each item. All items of an object are hidden together. None in a
        gallery with labels, or if no two items share an object.
    earlier : the part of the gallery that is searched with absent queries; None for the whole
        gallery.
    """

    encoder_fingerprint: str
    gallery: Gallery
    detector: OutlierDetector
    means: LabelMeans
    n_candidates: int
    correlation: Correlation = INDEPENDENT
    rule: TruthRule = BY_LABEL
    label_folds: LabelFolds | None = None
    objects: Integers | None = None
    earlier: Earlier | None = None

    @classmethod
    def known(
        cls,
        encoder: Encoder | TextEncoder,
        gallery: Gallery,
        detector: OutlierDetector,
        n_candidates: int = N_CANDIDATES,
    ) -> Self:
        """Use a fitted detector, and hide no labels."""
        n, metadata = min(n_candidates, gallery.n_items), encoder.metadata
        of_pairs = correlation_of(metadata) if isinstance(metadata, EncoderMetadata) else None
        known = encoder.fingerprint, gallery, detector, label_means(gallery), n
        return cls(*known, of_pairs or INDEPENDENT)

    @classmethod
    def of(
        cls,
        encoder: Encoder,
        gallery: Gallery,
        images: LabelledImages,
        embeddings: Embeddings,
        seed: int,
        *,
        hide_labels: bool,
        n_hidden: int = 0,
        layers: CrossFittedLayers | None = None,
    ) -> Self:
        """Fit the outlier detectors and label means of a gallery.

        Parameters
        ----------
        images, embeddings : a random sample of the gallery, in random order.
        hide_labels : whether absent queries are matched queries with a hidden label.
        n_hidden : maximum number of items hidden from a query, apart from items of the query's
            label.
        layers : see `fit_label_folds`.
        """
        objects, names = None if gallery.labels else objects_of(gallery, images), images.labels
        if objects is not None:
            assert images.groups is not None  # noqa: S101 - or no item would share a number
            n_hidden, names = max(n_hidden, int(np.bincount(objects).max())), images.groups
        folds = None
        if hide_labels:
            fitted = fit_label_folds(embeddings, names, seed, layers=layers)
            folds = fitted.of(images.labels, names)
        detector = fit_detector(embeddings, images.label_codes())
        n_listed = list_length(gallery, n_hidden, hide_labels=hide_labels)
        known = cls.known(encoder, gallery, detector, n_listed)
        return replace(known, label_folds=folds, objects=objects)

    @property
    def label_counts(self) -> Integers:
        """Number of items of each label, by code: (C,)."""
        codes = self.gallery.label_codes(np.arange(self.gallery.n_items))
        return np.bincount(codes[codes >= 0], minlength=len(self.gallery.labels)).astype(np.int64)

    def n_labels(self) -> Integers:
        """Return the number (3,) of labels in each size class.

        An item without a label counts as its own label.
        """
        of_labels = self.label_counts
        held = size_classes(of_labels[of_labels > 0])
        counts = np.bincount(held, minlength=3).astype(np.int64)
        counts[0] += self.gallery.n_items - of_labels.sum()
        return counts

    def lone_share(self) -> float:
        """Return the share of labelled images that are the only image of their label."""
        counts = self.label_counts
        return float((counts == 1).sum() / max(counts.sum(), 1))

    def observe(
        self, encoder: Encoder, queries: LabelledImages, seen: Seen | None = None
    ) -> RetrievedQueries:
        """Embed queries in batches, and search the gallery with them.

        In a gallery without labels, the label of a query is the id of the item that the query
        shows.

        Parameters
        ----------
        seen : callback for each query that is decoded.
        """
        variance = np.empty((len(queries), encoder.dim), dtype=np.float32)
        mean = np.empty_like(variance)
        scores = np.empty(len(queries))
        for positions, embeddings in embedded(encoder, queries, "calibration queries", seen):
            mean[positions], variance[positions] = embeddings.mean, embeddings.variance
            scores[positions] = self.detector.scores(embeddings)
        found = Embeddings(mean, variance, np.empty((len(queries), 0), dtype=np.float32))
        within = nearby(self.gallery, queries, self.rule.within)
        return self.look_up(queries.labels, found, scores, within=within)

    def observe_absent(self, encoder: Encoder, queries: LabelledImages) -> RetrievedQueries:
        """Search the gallery with absent queries; if there is an `Earlier` part, search only it."""
        if self.earlier is None:
            return self.observe(encoder, queries)
        embeddings = embed_with_features(encoder, queries, "queries without a match")
        scores = self.earlier.detector.scores(embeddings)
        return self.look_up(queries.labels, embeddings, scores, among=self.earlier.rows)

    def look_up_hidden(
        self, labels: Sequence[str], embeddings: Embeddings
    ) -> tuple[RetrievedQueries, Integers]:
        """Find candidates for embedded queries; hide the label of each query.

        A query is left out if too few items remain for its result list, or if no detector was
        fitted without the query's label. The method also returns the rows (n,) of the queries that
        were not left out.
        """
        folds = self.label_folds
        assert folds is not None  # noqa: S101 - the caller hides labels
        item_codes, codes = _codes(self.gallery, labels)
        n_others = self.gallery.n_items - _items_of_labels(item_codes, codes, unknown=0)
        kept = np.flatnonzero(folds.known(labels) & (n_others >= self.n_candidates))
        some, of_some = [labels[row] for row in kept.tolist()], embeddings.at(kept)
        return self.look_up(some, of_some, folds.scores(of_some, some), hide_label=True), kept

    def look_up(
        self,
        labels: Sequence[str],
        embeddings: Embeddings,
        outlier_scores: Floats,
        *,
        hide_label: bool = False,
        hidden: Integers | None = None,
        within: Within | None = None,
        among: NDArray[np.bool_] | None = None,
    ) -> RetrievedQueries:
        """Find `n_candidates` candidates for each of B embedded queries.

        Parameters
        ----------
        labels : (B,) label of each query. The gallery need not contain these labels.
        outlier_scores : (B,) outlier score of each query. The detector that gave the score must
            have been fitted without the hidden items and labels.
        hide_label : whether to hide all items of each query's own label, to make the query absent.
        hidden : (B, m) rows of items to exclude from each query's results, for example the query
            itself; padded with −1.
        within : rule for matches by distance; None if labels define matches.
        among : (N,) mask of the items that can be found; None for all items.
        """
        gallery, directions = self.gallery, embeddings.directions
        item_codes, codes = _codes(gallery, labels)
        truth: Truth = SameLabel(codes, item_codes) if within is None else within
        n = min(self.n_candidates, gallery.n_items)
        if hide_label:  # if the query is an item, this also hides that item
            rows, similarities = self._without_own_label(directions, n, item_codes, codes)
        elif among is not None:
            rows, similarities = _among(gallery, directions, n, among)
        else:
            rows, similarities = _without(gallery, directions, n, hidden)
        label_codes = item_codes[rows]
        of_means = similarities
        own_sizes, positions = _items_of_labels(item_codes, codes, unknown=0), None
        if within is not None:  # places take the role of labels; the size of a place is not known
            positions = within.items[rows]
            label_codes = np.stack([place_codes(one, within.metres) for one in positions])
            own_sizes = np.minimum(within.counts(), 1)
        elif gallery.labels:
            of_means = np.empty_like(similarities)
            for row, direction in enumerate(directions):
                of_list = label_codes[row], similarities[row]
                of_means[row] = self.means.similarities(direction, *of_list)
            if hidden is not None and not hide_label:
                rest = _means_without(gallery, item_codes, codes, hidden)
                without = np.einsum("bd,bd->b", directions, rest)[:, None]
                of_means = np.where(label_codes == codes[:, None], without, of_means)
        stds = np.full(len(rows), np.nan)  # the calibration uses those of matched queries only
        if not hide_label and n:
            found = zip(predict(embeddings, stds), rows[:, :1], similarities[:, :1], strict=True)
            of_pairs = [
                pair_uncertainty(gallery, *pair, correlation=self.correlation) for pair in found
            ]
            stds = np.array([one or 0 for one in of_pairs], dtype=float)
        return RetrievedQueries(
            embeddings.spherical_variances,
            stds,
            outlier_scores,
            similarities,
            label_codes,
            of_means,
            truth.matches(np.arange(len(labels)), rows),
            codes,
            np.zeros_like(own_sizes) if hide_label else own_sizes,
            _items_of_labels(item_codes, label_codes, unknown=1),
            positions,
        )

    def _without_own_label(
        self,
        directions: NDArray[np.float32],
        n: int,
        item_codes: NDArray[np.int32],
        codes: NDArray[np.int32],
    ) -> tuple[Integers, Floats]:
        """Return rows and similarities (B, n) of candidates that don't have the query's label."""
        rows = np.empty((len(directions), n), dtype=np.int64)
        similarities = np.empty((len(directions), n))
        for code in np.unique(codes):
            chosen = np.flatnonzero(codes == code)
            others = item_codes != code
            if self.objects is not None and code >= 0:  # the code of an unlabelled item is its row
                others = self.objects != self.objects[code]
            found = _among(self.gallery, directions[chosen], n, others)
            rows[chosen], similarities[chosen] = found
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
