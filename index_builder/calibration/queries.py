"""The calibration queries, and the gallery that they were searched in."""

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
from model_store.decision.staleness import search_settings
from model_store.encoder.contract import Encoder, TextEncoder
from model_store.gallery import Gallery

Integers = NDArray[np.int64]
Names = tuple[str, ...]

LEAST_LABELS = 10
"""Minimum number of withheld labels. If there are fewer, absent queries with hidden labels are
added. In a gallery with few labels, hidden labels are easier to detect than truly new labels."""


@dataclass(frozen=True, slots=True)
class TruthRule:
    """The rule for a true match.

    Attributes
    ----------
    hierarchy : parents of labels; None without parents.
    within : maximum metres from a query to a match; None if a match has the same label.
    """

    hierarchy: Hierarchy | None = None
    within: float | None = None


BY_LABEL = TruthRule()
"""A match has the same label, and labels have no parents."""


@dataclass(frozen=True, slots=True)
class CalibratedGallery:
    """The gallery that a calibration is fitted for.

    Attributes
    ----------
    encoder_fingerprint, search : fingerprint of the encoder, and search settings of the gallery.
    n_candidates : length of every result list.
    label_counts : (C,) number of items of each label, by code.
    n_unlabelled : number of items without a label; each counts as its own label.
    detector, means : the outlier detector and the label means fitted to its images.
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
    """Gallery images as queries, each hidden from its own results with its group.

    No model may be fitted to these images. Then searching them in the rest of the gallery is like
    searching held-out queries in the whole gallery.

    Attributes
    ----------
    matched : the queries whose label another item has.
    absent, absent_of : see `CalibrationQueries`; None if no labels are hidden.
    clusters : clusters of ``matched``, in the numbering of the held-out queries.
    sources : see `CalibrationQueries`.
    places : indices of ``matched`` among the given gallery images.
    n_put : number of items added after the other queries were held out; they come first in
        ``matched``. No held-out query represents them.
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
    """The queries that a gallery is calibrated with.

    Attributes
    ----------
    matched : held-out queries whose label is in the gallery.
    absent : queries of the same kind without a match in the gallery.
    absent_of : for absent queries made by hiding labels, their indices in ``matched``; None for
        images of withheld labels.
    are_views : whether all queries are augmented views of gallery images, because there are no
        labels.
    clusters : cluster numbers of ``matched``; copies and photographs of one object share a number.
    sources : source of each matched query; None if unknown.
    withheld : queries of withheld labels, in addition to hidden ones; None if ``absent`` has all.
    absent_sources, absent_labels : sources and labels of queries of withheld labels.
    absent_rivals : number of labels of the gallery, divided by the labels that absent queries were
        compared with.
    leave_one_out : more queries, for estimates that need no exchangeable outlier scores; None if
        there are enough, or if the encoder was trained on the gallery's images.
    unseen : whether the encoder was not trained on the gallery's labels.
    are_items : whether the matched queries are items, each excluded from its own results.
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
        """The number of leave-one-out queries that were added later; see `LeaveOneOut`."""
        return 0 if self.leave_one_out is None else self.leave_one_out.n_put

    @property
    def n_absent(self) -> int:
        """The number of absent queries, hidden and withheld together."""
        return len(self.absent) + (0 if self.withheld is None else len(self.withheld))

    @property
    def absence(self) -> Absence:
        """The kind of the absent queries."""
        if self.absent_of is None:
            return "absent_labels"
        if self.are_views:
            return "near_misses_of_views"
        return "hidden_labels" if self.unseen else "hidden_trained_labels"
