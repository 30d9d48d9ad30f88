"""Holds the calibration queries, and describes the gallery that was searched with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.retrieval import RetrievedQueries
from model_store.decision import (
    Absence,
    Hierarchy,
    LabelMeans,
    OutlierDetector,
    size_classes,
)
from model_store.decision.calibration import search_settings
from model_store.encoder.contract import Encoder, TextEncoder
from model_store.gallery import Gallery

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
    def of(
        cls,
        encoder: Encoder | TextEncoder,
        gallery: Gallery,
        detector: OutlierDetector,
        means: LabelMeans,
        n_candidates: int,
        rule: TruthRule = BY_LABEL,
    ) -> CalibratedGallery:
        """Describe a gallery."""
        codes = gallery.label_codes(np.arange(gallery.n_items))
        counts = np.bincount(codes[codes >= 0], minlength=len(gallery.labels))
        return cls(
            encoder.fingerprint,
            search_settings(gallery),
            n_candidates,
            counts.astype(np.int64),
            int((codes < 0).sum()),
            detector,
            means,
            gallery.labels,
            rule,
        )

    def n_labels(self) -> Integers:
        """Return the number (3,) of labels in each size class."""
        held = size_classes(self.label_counts[self.label_counts > 0])
        counts = np.bincount(held, minlength=3).astype(np.int64)
        counts[0] += self.n_unlabelled
        return counts


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Gallery images as queries; each image and its group are hidden from the image's results.

    The models that give the results must not be fitted to these images. A model gives better
    results for images that it was fitted to than for held-out queries.

    Attributes
    ----------
    matched : queries whose label also belongs to another item.
    absent, absent_of : see `CalibrationQueries`; None if no labels are hidden.
    clusters : cluster numbers of ``matched``. Held-out queries have cluster numbers, too; equal
        numbers mean the same cluster.
    sources : see `CalibrationQueries`.
    places : index of each ``matched`` query among the gallery images.
    n_put : number of queries in ``matched`` that are added items. Added items were added to the
        gallery after the held-out queries were chosen. They come first in ``matched``. Held-out
        queries do not represent added items.
    """

    matched: RetrievedQueries
    absent: RetrievedQueries | None
    absent_of: Integers | None
    clusters: Integers
    sources: Names | None
    places: Integers
    n_put: int = 0


@dataclass(frozen=True, slots=True)
class CalibrationQueries:
    """The queries for the calibration of a gallery.

    Attributes
    ----------
    matched : held-out queries whose label is in the gallery.
    absent : absent queries: matched queries with a hidden label, or images of withheld labels.
    absent_of : for each absent query with a hidden label, the index in ``matched`` of the query
        that it was made from. None if ``absent`` has images of withheld labels.
    are_views : whether all queries are augmented views of gallery images, because there are no
        labels.
    clusters : cluster numbers of ``matched``; copies and photographs of one object share a number.
    sources : source of each matched query; None if unknown.
    withheld : further absent queries: images of withheld labels. None if ``absent`` already
        contains these images, or if no labels are withheld.
    absent_sources : source of each image of a withheld label.
    absent_labels : label of each such image.
    absent_rivals : n / m. The gallery has n labels; images of withheld labels were compared with m
        of these labels. See `rivals` of `index_builder.calibration.setup.Earlier`.
    leave_one_out : gallery images as additional queries. Outlier scores of gallery images are not
        exchangeable with outlier scores of new queries. None if there are enough held-out queries,
        or if the encoder was trained on the gallery's images.
    unseen : whether the encoder was not trained on the gallery's labels.
    are_items : whether the matched queries are items; each item is excluded from its own results.
    """

    matched: RetrievedQueries
    absent: RetrievedQueries
    absent_of: Integers | None
    are_views: bool
    clusters: Integers
    sources: Names | None = None
    withheld: RetrievedQueries | None = None
    absent_sources: Names | None = None
    absent_labels: Names | None = None
    absent_rivals: float = 1.0
    leave_one_out: LeaveOneOut | None = None
    unseen: bool = False
    are_items: bool = False

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
    def n_absent(self) -> int:
        """The number of absent queries; the queries in `withheld` count as absent queries."""
        return len(self.absent) + (0 if self.withheld is None else len(self.withheld))

    @property
    def absence(self) -> Absence:
        """The kind of the absent queries."""
        if self.absent_of is None:
            return "absent_labels"
        if self.are_views:
            return "near_misses_of_views"
        return "hidden_labels" if self.unseen else "hidden_trained_labels"
