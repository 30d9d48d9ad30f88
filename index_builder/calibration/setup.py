"""A gallery as calibration queries meet it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import MIN_REFERENCES, fit_detector
from index_builder.calibration.hidden_labels import LabelFolds, fit_label_folds
from index_builder.calibration.lists import items_alike, list_length
from index_builder.calibration.queries import BY_LABEL, CalibratedGallery, TruthRule
from index_builder.calibration.retrieval import RetrievedQueries, look_up, observe
from index_builder.datasets import LabelledImages
from index_builder.vectors.encoder import embed_with_features
from index_builder.vectors.images import Seen
from model_store.decision import LabelMeans, OutlierDetector, label_means
from model_store.encoder.contract import Embeddings, Encoder
from model_store.gallery import Gallery
from model_store.pairs import Correlation, correlation_of
from model_store.search import N_CANDIDATES


@dataclass(frozen=True, slots=True)
class Earlier:
    """The labels of a gallery at the time when absent queries were declared absent.

    Labels that came since may be what such a query shows: an animal that
    had no name is enrolled under one that its earlier photographs do not bear.

    Attributes
    ----------
    rows : (N,) which items have such a label.
    detector : fitted to these alone.
    rivals : how many times as many labels the gallery has by now.
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
        seed: int,
    ) -> Earlier | None:
        """Leave out the labels that came since; None where none did, or too little is left.

        Parameters
        ----------
        images, embeddings : some of the gallery, in random order.
        labels : of the gallery at that time.
        """
        known = set(labels)
        held = np.array([label in known for label in gallery.labels], dtype=bool)
        if not known or held.all():
            return None
        codes = gallery.label_codes(np.arange(gallery.n_items))
        kept = np.flatnonzero([label in known for label in images.labels])
        if len(kept) < MIN_REFERENCES:
            return None
        detector = fit_detector(embeddings.at(kept), images.label_codes()[kept], seed)
        rows = np.where(codes >= 0, held[codes], True)
        return cls(rows, detector, len(held) / int(held.sum()))


@dataclass(frozen=True, slots=True)
class RetrievalSetup:
    """A gallery as queries meet it.

    Attributes
    ----------
    detector, means : of the gallery.
    label_folds : detectors that do not know a label; None where real absent queries are at hand.
    alike : of a gallery without labels, see `look_up`; None where every item is a separate label.
    n_candidates : items of every list: so many that a query whose label is hidden finds as many.
    rule : what counts as a match, and what stands above labels.
    earlier : what absent queries are judged by; None for the whole gallery.
    """

    encoder: Encoder
    gallery: Gallery
    detector: OutlierDetector
    means: LabelMeans
    label_folds: LabelFolds | None
    alike: NDArray[np.int64] | None
    n_candidates: int
    rule: TruthRule = BY_LABEL
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
    ) -> RetrievalSetup:
        """Learn what the decision layer knows of a gallery.

        Parameters
        ----------
        images, embeddings : some of the gallery, in random order.
        hide_labels : whether absent queries are matched ones with their label hidden.
        n_hidden : items that are hidden from a query for other reasons.
        """
        alike, names = None if gallery.labels else items_alike(gallery, images), images.labels
        if alike is not None:
            assert images.groups is not None  # noqa: S101 - or no item would share a number
            n_hidden, names = max(n_hidden, int(np.bincount(alike).max())), images.groups
        return cls(
            encoder,
            gallery,
            fit_detector(embeddings, images.label_codes(), seed),
            label_means(gallery),
            fit_label_folds(embeddings, names, seed).of(images.labels, names)
            if hide_labels
            else None,
            alike,
            list_length(gallery, n_hidden, hide_labels=hide_labels),
        )

    @classmethod
    def known(cls, encoder: Encoder, gallery: Gallery, detector: OutlierDetector) -> RetrievalSetup:
        """Take the detector of an earlier calibration, and hide nothing."""
        n = min(N_CANDIDATES, gallery.n_items)
        return cls(encoder, gallery, detector, label_means(gallery), None, None, n)

    @property
    def calibrated(self) -> CalibratedGallery:
        """The gallery as its calibration describes it."""
        return CalibratedGallery.of(
            *(self.encoder, self.gallery, self.detector, self.means),
            *(self.n_candidates, self.rule),
        )

    @property
    def correlation(self) -> Correlation:
        """The correlation of the errors of a pair, see `correlation_of`."""
        return correlation_of(self.encoder.metadata)

    def observe(self, queries: LabelledImages, seen: Seen | None = None) -> RetrievedQueries:
        """Embed queries and look them up; ``seen`` receives those that had to be decoded."""
        return observe(
            *(self.encoder, self.gallery, self.detector, self.means, queries),
            *(self.n_candidates, seen, self.rule.within),
        )

    def observe_absent(self, queries: LabelledImages) -> RetrievedQueries:
        """Look up absent queries among the labels of the time when they were declared absent."""
        if self.earlier is None:
            return self.observe(queries)
        embeddings = embed_with_features(self.encoder, queries, "queries without a match")
        return look_up(
            *(self.gallery, self.means, queries, embeddings),
            self.earlier.detector.scores(embeddings),
            self.n_candidates,
            among=self.earlier.rows,
        )
