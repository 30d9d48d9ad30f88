"""A gallery and images to ask it about, to a calibration: the same for every kind of gallery."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import fit_detector
from index_builder.calibration.embed import embed_with_features
from index_builder.calibration.fit import (
    CalibratedGallery,
    CalibrationQueries,
    LeaveOneOut,
    fit_calibration,
)
from index_builder.calibration.hidden_labels import LabelFolds, fit_label_folds
from index_builder.calibration.leave_one_out import (
    ENOUGH,
    group_numbers,
    leave_one_out_queries,
    out_of_fold_signals,
    rows_of_groups,
)
from index_builder.calibration.retrieval import Observed, look_up, observe
from index_builder.configuration.build import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import corrupted
from index_builder.datasets.splits import QuerySet
from index_builder.progress import track
from model_store.decision import Calibration, LabelMeans, OutlierDetector, label_means
from model_store.encoder.contract import Embeddings, Encoder
from model_store.gallery import Gallery
from model_store.images.quality import ordinary_limits, quality_measures
from model_store.search import N_CANDIDATES

N_DETECTOR_IMAGES = 10_000
"""Gallery images whose features the outlier detector is fitted on; beyond it nothing is gained and
the features of a large gallery do not fit into memory."""

N_CORRUPTED = 1_000
"""Calibration queries that are spoilt to learn what that looks like."""

PARTS = 4
"""A list is at most this part of the gallery, where labels are hidden: of a gallery whose label is
hidden the same number of items would reach further out than it does in service."""

LEAST_LISTED = 10
"""Items of a list that votes are counted in, however small the gallery."""


@dataclass(frozen=True, slots=True)
class SearchedGallery:
    """A gallery as queries meet it.

    Attributes
    ----------
    detector, means : of the gallery.
    label_folds : detectors that do not know a label; None where real absent queries are at hand.
    n_candidates : items of every list: so many that a query whose label is hidden finds as many.
    """

    encoder: Encoder
    gallery: Gallery
    detector: OutlierDetector
    means: LabelMeans
    label_folds: LabelFolds | None
    n_candidates: int

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
    ) -> SearchedGallery:
        """Learn what the decision layer knows of a gallery.

        Parameters
        ----------
        images, embeddings : some of the gallery, in random order.
        hide_labels : whether absent queries are matched ones with their label hidden.
        n_hidden : items that are hidden from a query for other reasons.
        """
        n_candidates = N_CANDIDATES
        if hide_labels:
            n_hidden = max(n_hidden, largest_hidden(gallery))
            n_candidates = min(n_candidates, max(gallery.n_items // PARTS, LEAST_LISTED))
        return cls(
            encoder,
            gallery,
            fit_detector(embeddings, images.label_codes(), seed),
            label_means(gallery),
            fit_label_folds(embeddings, images.labels, seed) if hide_labels else None,
            min(n_candidates, gallery.n_items - n_hidden),
        )

    def observe(self, queries: LabelledImages) -> Observed:
        """Embed queries and look them up."""
        return observe(
            self.encoder, self.gallery, self.detector, self.means, queries, self.n_candidates
        )


def calibration_queries(
    searched: SearchedGallery,
    queries: QuerySet,
    seed: int,
    *,
    are_views: bool = False,
    unseen: bool = False,
) -> CalibrationQueries:
    """Ask a gallery everything that the decision layer learns from.

    Where no labels are withheld, the absent queries are the matched ones with their own label
    hidden from the list and from the outlier detector.

    Parameters
    ----------
    are_views : whether the queries are views of gallery images.
    unseen : whether the encoder has learned nothing from the gallery's labels.
    """
    matched, folds = queries.matched, searched.label_folds
    chosen = np.random.default_rng(seed).permutation(len(matched))[:N_CORRUPTED]
    clusters = group_numbers(matched)
    if folds is None:
        of_matched = searched.observe(matched)
        absent = searched.observe(queries.withheld)
        absent_of = None
    else:
        embeddings = embed_with_features(searched.encoder, matched, "calibration queries")
        signals = searched.detector.signals(embeddings)
        of_matched = look_up(
            searched.gallery, searched.means, matched, embeddings, signals, searched.n_candidates
        )
        absent, absent_of = observe_hidden(searched, matched, embeddings)
    return CalibrationQueries(
        matched=of_matched,
        absent=absent,
        absent_of=absent_of,
        are_views=are_views,
        corrupted=searched.observe(corrupted(matched, seed).subset(chosen)),
        corrupted_of=chosen,
        outliers=None if queries.outliers is None else searched.observe(queries.outliers),
        clusters=clusters,
        sources=matched.sources,
        absent_sources=None if folds is not None else queries.withheld.sources,
        unseen=unseen,
    )


def observe_hidden(
    searched: SearchedGallery, images: LabelledImages, embeddings: Embeddings
) -> tuple[Observed, NDArray[np.int64]]:
    """Look up images with their own label hidden, and return which of them could be."""
    folds, gallery = searched.label_folds, searched.gallery
    assert folds is not None  # noqa: S101 - the caller has looked
    sizes = look_up(
        gallery,
        searched.means,
        images,
        embeddings,
        np.empty((len(images), 0)),
        1,
    ).own_sizes
    enough = gallery.n_items - sizes >= searched.n_candidates
    kept = np.flatnonzero(folds.known(images.labels) & enough)
    some, of_some = images.subset(kept), embeddings.at(kept)
    hidden = look_up(
        gallery,
        searched.means,
        some,
        of_some,
        folds.signals(of_some, some.labels),
        searched.n_candidates,
        hide_label=True,
    )
    return hidden, kept


def largest_hidden(gallery: Gallery) -> int:
    """Return the size of the largest label that is at most half of the gallery.

    Lists are so much shorter than the gallery. A larger label would leave next to nothing of them:
    its queries are no stand-ins for absent ones.
    """
    if not gallery.labels:
        return 1
    codes = gallery.label_codes(np.arange(gallery.n_items))
    counts = np.bincount(codes[codes >= 0])
    return int(counts[counts <= gallery.n_items // 2].max(initial=0))


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

    Raises
    ------
    CalibrationError : too few queries, or too few images.
    """
    embeddings = embed_with_features(encoder, images, "features of the gallery")
    hide_labels = len(queries.withheld) == 0
    n_held_out = len(queries.matched)
    left_out = leave_one_out_queries(images, n_held_out, enough if unseen else 0)
    some = images.subset(left_out)
    hidden = rows_of_groups(gallery, images)[left_out] if len(left_out) else None
    searched = SearchedGallery.of(
        encoder,
        gallery,
        images,
        embeddings,
        seed,
        hide_labels=hide_labels,
        n_hidden=0 if hidden is None else hidden.shape[1],
    )
    matched = queries.matched
    observed = calibration_queries(searched, queries, seed, are_views=are_views, unseen=unseen)
    if hidden is not None:
        clusters = group_numbers(matched, some)
        groups = group_numbers(images)
        of_some = embeddings.at(left_out)
        signals = out_of_fold_signals(embeddings, images.label_codes(), groups, seed)[left_out]
        absent, absent_of = observe_hidden(searched, some, of_some) if hide_labels else (None, None)
        observed = replace(
            observed,
            clusters=clusters[: len(matched)],
            leave_one_out=LeaveOneOut(
                look_up(
                    gallery,
                    searched.means,
                    some,
                    of_some,
                    signals,
                    searched.n_candidates,
                    hidden=hidden,
                ),
                absent,
                absent_of,
                clusters[len(matched) :],
                some.sources,
            ),
        )
    pictures = track(range(len(matched)), "quality of the queries", len(matched))
    measures = [quality_measures(matched.pixels(position)) for position in pictures]
    return fit_calibration(
        CalibratedGallery.of(
            encoder, gallery, searched.detector, searched.means, searched.n_candidates
        ),
        observed,
        config,
        seed,
        ordinary_limits(np.stack(measures)),
    )
