"""The queries that the decision layer is fitted to, and the gallery that they were searched in."""

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
"""Withheld labels below which hidden ones join them: what is left of five labels without one is
easier to tell from it than five are from a sixth."""


@dataclass(frozen=True, slots=True)
class TruthRule:
    """The rule for a true match.

    Attributes
    ----------
    hierarchy : labels above labels; None where labels have no parents.
    within : metres from a query to a match; None where a match has the same label.
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
    encoder_fingerprint, search : of the encoder, and how the gallery is searched.
    n_candidates : items of every list.
    label_counts : (C,) items of each label by its code.
    n_unlabelled : items without a label, each of which is a separate label.
    detector, means : the outlier detector and the label means fitted to its images.
    labels : the C labels by their code.
    rule : what counts as a match, and what stands above labels.
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
    """Gallery images as queries, each hidden from its own list with its group.

    Nothing may have been learned from them but the gallery itself: then they are to the rest of it
    what held-out queries are to all of it.

    Attributes
    ----------
    matched : those whose label another item has.
    absent, absent_of : as in `CalibrationQueries`; None where no labels are hidden.
    clusters : of the matched, numbered as those of the held-out queries are.
    sources : as in `CalibrationQueries`.
    places : of the matched among the images of the gallery that were at hand.
    n_put : how many of the matched, the first ones, came since the others were held out: no
        held-out query speaks for what they show.
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
    absent : queries of the same kinds of picture without a true match there.
    absent_of : the places of absent queries among the matched ones, whose label is hidden from
        them; None where they are images of withheld labels.
    are_views : whether all of these are made-up views of gallery images, because no labels say
        which images belong together.
    clusters : of the matched queries; copies, and photographs of one object, share a number.
    sources : the source of each matched query; None where none is known.
    withheld : queries of withheld labels beside hidden ones; None where ``absent`` are all.
    absent_sources, absent_labels : sources and labels of queries of withheld labels.
    absent_rivals : ratio of the gallery's labels to those that they were judged by.
    leave_one_out : more queries, for estimates that need no exchangeability of the outlier scores;
        None where there are enough, or the encoder has learned from the gallery's images.
    unseen : whether the encoder has learned nothing from the gallery's labels.
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
        """The origin of the matched queries, as the report names it."""
        if self.are_items:
            return "left_out_items"
        return "views_of_items" if self.are_views else "held_out_images"

    @property
    def n_put(self) -> int:
        """The number of items, the first of the leave-one-out queries, that came since."""
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
