"""Prepares a gallery to be searched with calibration queries, and holds these queries."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import MIN_REFERENCES, fit_detector
from index_builder.calibration.item_queries import CrossFittedLayers
from index_builder.calibration.retrieval import (
    LabelFolds,
    RetrievedQueries,
    fit_label_folds,
    look_up,
    look_up_hidden,
    observe,
)
from index_builder.datasets import LabelledImages
from index_builder.vectors.encoder import embed_with_features
from index_builder.vectors.images import Seen
from model_store.decision import (
    Absence,
    Hierarchy,
    LabelMeans,
    OutlierDetector,
    label_means,
    size_classes,
)
from model_store.decision.calibration import search_settings
from model_store.encoder.contract import Embeddings, Encoder, TextEncoder
from model_store.gallery import Gallery
from model_store.predictive import correlation_of
from model_store.search import N_CANDIDATES

Integers = NDArray[np.int64]
Names = tuple[str, ...]

LEAST_LABELS = 10
"""Minimum number of withheld labels. If fewer labels are withheld, each matched query is also used
as an absent query, and the label of this query is hidden. In a gallery with few labels, hidden
labels are easier to detect than truly new labels."""


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
class CalibratedGallery:
    """The gallery that a calibration is fitted for.

    Attributes
    ----------
    encoder_fingerprint : fingerprint of the encoder.
    search : search settings of the gallery.
    n_candidates : length of every result list.
    label_counts : (C,) number of items of each label, by code.
    n_unlabelled : number of items without a label; each such item counts as its own label.
    detector : the outlier detector, fitted to the gallery's images.
    means : the mean direction of each label.
    labels : the C labels, by code.
    rule : the rule for a match, and the parents of labels.
    """

    encoder_fingerprint: str
    search: Mapping[str, Any]
    n_candidates: int
    label_counts: Integers
    n_unlabelled: int
    detector: OutlierDetector
    means: LabelMeans
    labels: Sequence[str]
    rule: TruthRule = BY_LABEL

    @classmethod
    def described(
        cls,
        encoder: Encoder | TextEncoder,
        gallery: Gallery,
        detector: OutlierDetector,
        n_candidates: int,
        /,
        **more: Any,  # noqa: ANN401 - fields of a subclass
    ) -> Self:
        """Describe a gallery; compute the mean direction of each label."""
        codes = gallery.label_codes(np.arange(gallery.n_items))
        counts = np.bincount(codes[codes >= 0], minlength=len(gallery.labels))
        return cls(
            encoder.fingerprint,
            search_settings(gallery),
            n_candidates,
            counts.astype(np.int64),
            int((codes < 0).sum()),
            detector,
            label_means(gallery),
            gallery.labels,
            **more,
        )

    def n_labels(self) -> Integers:
        """Return the number (3,) of labels in each size class."""
        held = size_classes(self.label_counts[self.label_counts > 0])
        counts = np.bincount(held, minlength=3).astype(np.int64)
        counts[0] += self.n_unlabelled
        return counts


@dataclass(frozen=True, slots=True)
class Hidden:
    """Absent queries that are matched queries with a hidden label.

    Attributes
    ----------
    observed : the queries.
    of : for each query, the index of the matched query that it was made from.
    """

    observed: RetrievedQueries
    of: Integers


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Gallery images as queries; each image and its group are hidden from the image's results.

    The models that give the results must not be fitted to these images. A model gives better
    results for images that it was fitted to than for held-out queries.

    Attributes
    ----------
    matched : queries whose label also belongs to another item.
    hidden : ``matched`` with hidden labels; None if no labels are hidden.
    clusters : cluster numbers of ``matched``. Held-out queries have cluster numbers, too; equal
        numbers mean the same cluster.
    sources : see `CalibrationQueries`.
    places : index of each ``matched`` query among the gallery images.
    n_put : number of queries in ``matched`` that are added items. Added items were added to the
        gallery after the held-out queries were chosen. They come first in ``matched``. Held-out
        queries do not represent added items.
    """

    matched: RetrievedQueries
    hidden: Hidden | None
    clusters: Integers
    sources: Names | None
    places: Integers
    n_put: int = 0


@dataclass(frozen=True, slots=True)
class CalibrationQueries:
    """The queries for the calibration of a gallery.

    Absent queries are ``hidden`` or ``withheld``; at least one of the two is given.

    Attributes
    ----------
    matched : held-out queries whose label is in the gallery.
    clusters : cluster numbers of ``matched``; copies and photographs of one object share a number.
    hidden : ``matched`` with hidden labels; None if no labels are hidden.
    withheld : queries whose label the gallery does not have; None without such queries.
    are_views : whether all queries are augmented views of gallery images, because there are no
        labels.
    sources : source of each matched query; None if unknown.
    withheld_sources, withheld_labels : source and label of each withheld query.
    rivals : n / m. The gallery has n labels; withheld queries were compared with m of these labels.
        See `Earlier`.
    leave_one_out : gallery images as additional queries. Outlier scores of gallery images are not
        exchangeable with outlier scores of new queries. None if there are enough held-out queries,
        or if the encoder was trained on the gallery's images.
    unseen : whether the encoder was not trained on the gallery's labels.
    are_items : whether the matched queries are items; each item is excluded from its own results.
    """

    matched: RetrievedQueries
    clusters: Integers
    hidden: Hidden | None = None
    withheld: RetrievedQueries | None = None
    are_views: bool = False
    sources: Names | None = None
    withheld_sources: Names | None = None
    withheld_labels: Names | None = None
    rivals: float = 1.0
    leave_one_out: LeaveOneOut | None = None
    unseen: bool = False
    are_items: bool = False

    @property
    def absent(self) -> list[RetrievedQueries]:
        """The absent queries that are not gallery images: with hidden labels, and withheld."""
        hidden = [] if self.hidden is None else [self.hidden.observed]
        return hidden if self.withheld is None else [*hidden, self.withheld]

    @property
    def origin(self) -> str:
        """The origin of the matched queries, for the report."""
        if self.are_items:
            return "left_out_items"
        return "views_of_items" if self.are_views else "held_out_images"

    @property
    def n_put(self) -> int:
        """The number of leave-one-out queries that are added items; see `LeaveOneOut.n_put`."""
        return 0 if self.leave_one_out is None else self.leave_one_out.n_put

    @property
    def absence(self) -> Absence:
        """The kind of the absent queries."""
        if self.hidden is None:
            return "absent_labels"
        if self.are_views:
            return "near_misses_of_views"
        return "hidden_labels" if self.unseen else "hidden_trained_labels"


PARTS = 4
"""If labels are hidden, a result list has at most 1 / `PARTS` of the gallery's items. If a label is
hidden, its items cannot be found, and other items take their places. Without this limit, some of
these replacements would be too dissimilar for a result list of the service."""

LEAST_LISTED = 10
"""Minimum length of a result list in a small gallery."""


PlainItems = tuple[NDArray[np.int64], LabelledImages, Embeddings]
"""Three parts for n views: the row of each view among the matched queries, (n,); the item that each
view shows; and the embedding of each item."""


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


def hideable_labels(labels: Sequence[str]) -> frozenset[str]:
    """Return the labels whose queries can become absent queries, from the labels (N,) of all items.

    If such a label is hidden, the remaining items fill a result list.
    """
    names, counts = np.unique(np.array(labels), return_counts=True)
    enough = len(labels) - counts >= _length_without_label(counts, len(labels), 0)
    return frozenset(names[enough].tolist())


def plain_items(
    matched: LabelledImages, images: LabelledImages, embeddings: Embeddings
) -> PlainItems:
    """Find the original gallery image of each view in ``matched``."""
    row_of = {name: row for row, name in enumerate(images.ids)}
    places = np.array([n for n, name in enumerate(matched.ids) if name in row_of], dtype=np.int64)
    rows = np.array([row_of[matched.ids[place]] for place in places], dtype=np.int64)
    return places, images.at(rows), embeddings.at(rows)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalSetup(CalibratedGallery):
    """A gallery, with models and settings to search it with calibration queries.

    Attributes
    ----------
    label_folds : detectors; each was fitted without some labels. None if no labels are hidden.
    objects : see `look_up`; None in a gallery with labels, or if no two items share an object.
    earlier : the part of the gallery that is searched with absent queries; None for the whole
        gallery.
    """

    encoder: Encoder
    gallery: Gallery
    label_folds: LabelFolds | None = None
    objects: NDArray[np.int64] | None = None
    earlier: Earlier | None = None

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
    ) -> RetrievalSetup:
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
        return cls.described(
            *(encoder, gallery, fit_detector(embeddings, images.label_codes())),
            list_length(gallery, n_hidden, hide_labels=hide_labels),
            encoder=encoder,
            gallery=gallery,
            label_folds=folds,
            objects=objects,
        )

    @classmethod
    def known(cls, encoder: Encoder, gallery: Gallery, detector: OutlierDetector) -> RetrievalSetup:
        """Use the detector of an earlier calibration, and hide no labels."""
        n = min(N_CANDIDATES, gallery.n_items)
        return cls.described(encoder, gallery, detector, n, encoder=encoder, gallery=gallery)

    def observe(self, queries: LabelledImages, seen: Seen | None = None) -> RetrievedQueries:
        """Embed queries, and search the gallery with them; call ``seen`` for each decoded query."""
        return observe(
            *(self.encoder, self.gallery, self.detector, self.means, queries),
            *(self.n_candidates, seen, self.rule.within),
        )

    def observe_absent(self, queries: LabelledImages) -> RetrievedQueries:
        """Search the gallery with absent queries; if there is an `Earlier` part, search only it."""
        if self.earlier is None:
            return self.observe(queries)
        embeddings = embed_with_features(self.encoder, queries, "queries without a match")
        scores = self.earlier.detector.scores(embeddings)
        return self.look_up(queries.labels, embeddings, scores, among=self.earlier.rows)

    def observe_hidden(self, queries: LabelledImages, embeddings: Embeddings) -> Hidden | None:
        """Search the gallery with queries whose label is hidden; None if no labels are hidden."""
        if self.label_folds is None:
            return None
        return Hidden(
            *look_up_hidden(
                *(self.gallery, self.means, queries.labels, embeddings),
                *(self.label_folds, self.n_candidates, self.objects),
            )
        )

    def look_up(
        self,
        labels: Sequence[str],
        embeddings: Embeddings,
        outlier_scores: NDArray[np.float64],
        *,
        hidden: NDArray[np.int64] | None = None,
        among: NDArray[np.bool_] | None = None,
    ) -> RetrievedQueries:
        """Search the gallery with embedded queries; see `look_up`."""
        return look_up(
            *(self.gallery, self.means, labels, embeddings, outlier_scores, self.n_candidates),
            hidden=hidden,
            among=among,
            correlation=correlation_of(self.encoder.metadata),
        )
