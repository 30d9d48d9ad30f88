"""A gallery and images to ask it about, to a calibration: the same for every kind of gallery."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import fit_detector
from index_builder.calibration.fit import fit_calibration
from index_builder.calibration.hidden_labels import LabelFolds, fit_label_folds
from index_builder.calibration.leave_one_out import (
    ENOUGH,
    PutItems,
    group_numbers,
    leave_one_out_queries,
    out_of_fold_signals,
    rows_of_groups,
)
from index_builder.calibration.lists import PlainItems, items_alike, list_length, plain_items
from index_builder.calibration.pictures import MeasuredPictures
from index_builder.calibration.queries import (
    BY_LABEL,
    CalibratedGallery,
    CalibrationQueries,
    LeaveOneOut,
    TruthRule,
)
from index_builder.calibration.retrieval import (
    RetrievedQueries,
    look_up,
    look_up_hidden,
    observe,
)
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import corrupted, corrupted_vectors
from index_builder.datasets.splits import QuerySet
from index_builder.vectors.encoder import embed_with_features
from index_builder.vectors.images import Seen
from model_store.decision import Calibration, LabelMeans, OutlierDetector, label_means
from model_store.encoder.contract import Embeddings, Encoder
from model_store.gallery import Gallery
from model_store.search import N_CANDIDATES

N_DETECTOR_IMAGES = 10_000
"""Gallery images whose features the outlier detector is fitted on; beyond it nothing is gained and
the features of a large gallery do not fit into memory."""

N_CORRUPTED = 1_000
"""Calibration queries that are spoilt to learn what that looks like."""


SpoiltQueries = tuple[LabelledImages, NDArray[np.int64]]
"""Spoilt queries (n,), and their places among the matched ones."""


@dataclass(frozen=True, slots=True)
class RetrievalSetup:
    """A gallery as queries meet it.

    Attributes
    ----------
    detector, means : of the gallery.
    label_folds : detectors that do not know a label; None where real absent queries are at hand.
    alike : of a gallery without labels, see `look_up`; None where every item is one of its own.
    n_candidates : items of every list: so many that a query whose label is hidden finds as many.
    rule : what counts as a match, and what stands above labels.
    """

    encoder: Encoder
    gallery: Gallery
    detector: OutlierDetector
    means: LabelMeans
    label_folds: LabelFolds | None
    alike: NDArray[np.int64] | None
    n_candidates: int
    rule: TruthRule = BY_LABEL

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
            assert images.groups is not None  # noqa: S101 - or nothing would be alike
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

    def observe(self, queries: LabelledImages, seen: Seen | None = None) -> RetrievedQueries:
        """Embed queries and look them up; ``seen`` is told of those that had to be decoded."""
        return observe(
            *(self.encoder, self.gallery, self.detector, self.means, queries),
            *(self.n_candidates, seen, self.rule.within),
        )


def calibration_queries(
    setup: RetrievalSetup,
    queries: QuerySet,
    seed: int,
    *,
    are_views: bool = False,
    unseen: bool = False,
    plain: PlainItems | None = None,
    seen: Seen | None = None,
    of_spoilt: SpoiltQueries | None = None,
) -> CalibrationQueries:
    """Ask a gallery everything that the decision layer learns from.

    Where no labels are withheld, the absent queries are the matched ones, or the pictures that
    those are views of, with their own label hidden from the list and from the outlier detector.

    Parameters
    ----------
    are_views : whether the queries are views of gallery images.
    unseen : whether the encoder has learned nothing from the gallery's labels.
    plain : of views, the pictures that they are of: absent queries once they are hidden. What
        somebody photographs resembles other items as they do; a view, cut and turned, less.
    seen : told of each matched query that had to be decoded.
    of_spoilt : spoilt queries; None to spoil some of the matched ones.
    """
    matched, folds = queries.matched, setup.label_folds
    corrupted_ones, corrupted_of = of_spoilt or spoilt_queries(setup.encoder, matched, seed)
    clusters = group_numbers(matched)
    if folds is None:
        of_matched = setup.observe(matched, seen)
        absent = setup.observe(queries.withheld)
        absent_of = None
    else:
        embeddings = embed_with_features(setup.encoder, matched, "calibration queries", seen)
        signals = setup.detector.signals(embeddings)
        of_matched = look_up(
            setup.gallery, setup.means, matched, embeddings, signals, setup.n_candidates
        )
        if plain is None:
            absent, absent_of = _observe_hidden(setup, matched, embeddings)
        else:
            places, items, of_items = plain
            absent, kept = _observe_hidden(setup, items, of_items)
            absent_of = places[kept]
    return CalibrationQueries(
        matched=of_matched,
        absent=absent,
        absent_of=absent_of,
        are_views=are_views,
        corrupted=setup.observe(corrupted_ones),
        corrupted_of=corrupted_of,
        outliers=None if queries.outliers is None else setup.observe(queries.outliers),
        clusters=clusters,
        sources=matched.sources,
        absent_sources=None if folds is not None else queries.withheld.sources,
        absent_labels=None if folds is not None else queries.withheld.labels,
        unseen=unseen,
    )


def spoilt(encoder: Encoder, images: LabelledImages, seed: int) -> LabelledImages:
    """The same images, or vectors, spoilt as such can be."""
    spoil = corrupted if encoder.metadata.takes_images else corrupted_vectors
    return spoil(images, seed)


def spoilt_queries(encoder: Encoder, matched: LabelledImages, seed: int) -> SpoiltQueries:
    """Spoil some of the matched queries."""
    chosen = np.random.default_rng(seed).permutation(len(matched))[:N_CORRUPTED]
    return spoilt(encoder, matched, seed).subset(chosen), chosen


def _observe_hidden(
    setup: RetrievalSetup, images: LabelledImages, embeddings: Embeddings
) -> tuple[RetrievedQueries, NDArray[np.int64]]:
    """Look up images with their own label hidden, and return which of them could be."""
    assert setup.label_folds is not None  # noqa: S101 - the caller has looked
    return look_up_hidden(
        setup.gallery,
        setup.means,
        images,
        embeddings,
        setup.label_folds,
        setup.n_candidates,
        setup.alike,
    )


def calibrate_gallery(
    encoder: Encoder,
    gallery: Gallery,
    images: LabelledImages,
    queries: QuerySet,
    config: CalibrationConfig,
    seed: int,
    *,
    are_views: bool,
    unseen: bool,
    enough: int = ENOUGH,
    rule: TruthRule = BY_LABEL,
) -> Calibration:
    """Ask the gallery everything, and fit the decision layer to what it finds.

    Parameters
    ----------
    images : of the gallery, in random order, at most `N_DETECTOR_IMAGES`.
    are_views : whether the queries are views of gallery images, made up, because nobody knows what
        belongs together; then each image is its own label.
    unseen : whether the encoder has learned nothing from the gallery's images.
    enough : matched queries below which images of an unseen gallery are queries too, each hidden
        from its own list.
    rule : what counts as a match, and what stands above labels.

    Raises
    ------
    CalibrationError : too few queries, or too few images.
    """
    pictures = MeasuredPictures(encoder.metadata.input.smallest_side)
    setup, observed = observe_gallery(
        encoder,
        gallery,
        images,
        queries,
        seed,
        are_views=are_views,
        unseen=unseen,
        enough=enough,
        rule=rule,
        seen=None if are_views else pictures.look_at,  # of a view nobody knows what was decoded
    )
    limits = pictures.limits(queries.matched)
    return fit_calibration(setup.calibrated, observed, config, seed, limits)


def observe_gallery(
    encoder: Encoder,
    gallery: Gallery,
    images: LabelledImages,
    queries: QuerySet,
    seed: int,
    *,
    are_views: bool,
    unseen: bool,
    enough: int = ENOUGH,
    rule: TruthRule = BY_LABEL,
    seen: Seen | None = None,
    of_spoilt: SpoiltQueries | None = None,
    was_put: NDArray[np.bool_] | None = None,
) -> tuple[RetrievalSetup, CalibrationQueries]:
    """Ask the gallery everything; see `calibrate_gallery` and `calibration_queries`.

    Parameters
    ----------
    was_put : which of the images were put into the gallery since the queries were held out; they
        are queries too, each hidden from its own list.
    """
    embeddings = embed_with_features(encoder, images, "features of the gallery")
    matched = queries.matched
    put = None if was_put is None else PutItems.of(gallery, images, was_put, len(matched))
    left_out = leave_one_out_queries(images, len(matched), enough if unseen else 0, put)
    hidden = rows_of_groups(gallery, images)[left_out] if len(left_out) else None
    setup = RetrievalSetup.of(
        encoder,
        gallery,
        images,
        embeddings,
        seed,
        hide_labels=len(queries.withheld) == 0,
        n_hidden=0 if hidden is None else hidden.shape[1],
    )
    setup = replace(setup, rule=rule)
    observed = calibration_queries(
        setup,
        queries,
        seed,
        are_views=are_views,
        unseen=unseen,
        plain=plain_items(matched, images, embeddings) if are_views else None,
        seen=seen,
        of_spoilt=of_spoilt,
    )
    if hidden is not None:
        observed = _with_gallery_images(
            observed, setup, matched, images, embeddings, left_out, hidden, seed
        )
    return setup, observed


def calibrate_with_queries(
    encoder: Encoder,
    gallery: Gallery,
    detector: OutlierDetector,
    queries: QuerySet,
    config: CalibrationConfig,
    seed: int,
    rule: TruthRule = BY_LABEL,
) -> Calibration:
    """Fit the decision layer to queries with and without a match, of a gallery that is known.

    Parameters
    ----------
    detector : of the gallery, by an earlier calibration.
    queries : some of them withheld, which is to say without a match.
    rule : what counts as a match, and what stands above labels.

    Raises
    ------
    CalibrationError : too few queries of either kind.
    """
    setup = replace(RetrievalSetup.known(encoder, gallery, detector), rule=rule)
    pictures = MeasuredPictures(encoder.metadata.input.smallest_side)
    observed = calibration_queries(setup, queries, seed, seen=pictures.look_at)
    limits = pictures.limits(queries.matched)
    return fit_calibration(setup.calibrated, observed, config, seed, limits)


def _with_gallery_images(
    observed: CalibrationQueries,
    setup: RetrievalSetup,
    matched: LabelledImages,
    images: LabelledImages,
    embeddings: Embeddings,
    rows: NDArray[np.int64],
    hidden: NDArray[np.int64],
    seed: int,
) -> CalibrationQueries:
    """Add images of the gallery as queries, each left out of its own list.

    Parameters
    ----------
    matched : the held-out queries.
    images, embeddings : of the gallery.
    rows : (B,) of them that become queries.
    hidden : (B, m) see `look_up`.
    """
    signals = out_of_fold_signals(embeddings, images.label_codes(), group_numbers(images), seed)
    some, of_some = images.subset(rows), embeddings.at(rows)
    found = look_up(
        setup.gallery,
        setup.means,
        some,
        of_some,
        signals[rows],
        setup.n_candidates,
        hidden=hidden,
    )
    absent, absent_of = None, None
    if setup.label_folds is not None:
        absent, absent_of = _observe_hidden(setup, some, of_some)
    clusters = group_numbers(matched, some)
    return replace(
        observed,
        clusters=clusters[: len(matched)],
        leave_one_out=LeaveOneOut(
            found, absent, absent_of, clusters[len(matched) :], some.sources, rows
        ),
    )
