"""A gallery and images to ask it about, to a calibration: the same for every kind of gallery."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from index_builder.calibration.detector import fit_detector
from index_builder.calibration.fit import CalibrationQueries, fit_calibration
from index_builder.calibration.left_out import left_out_queries
from index_builder.configuration import CalibrationConfig
from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import corrupted
from index_builder.datasets.splits import QuerySet
from index_builder.embedding import embed_with_features
from index_builder.observation import Observed, observe
from index_builder.progress import track
from model_store.decision import Calibration, label_means
from model_store.encoder import Encoder
from model_store.gallery import Gallery
from model_store.quality import ordinary_limits, quality_measures
from model_store.staleness import search_settings

N_DETECTOR_IMAGES = 10_000
"""Gallery images whose features the outlier detector is fitted on; beyond it nothing is gained and
the features of a large gallery do not fit into memory."""

N_CORRUPTED = 1_000
"""Calibration queries that are spoilt to learn what that looks like."""


class Look(Protocol):
    """Looks images up in a gallery, see `observe`."""

    def __call__(self, images: LabelledImages, *, hide_label: bool = False) -> Observed:
        """What is found of ``images``."""


def asked(look: Look, queries: QuerySet, seed: int) -> CalibrationQueries:
    """What a gallery says of everything that the decision layer learns from.

    Where no labels are withheld, the queries without a match are the matched ones, with their own
    label hidden.
    """
    matched, strangers = queries.matched, len(queries.withheld) > 0
    chosen = np.random.default_rng(seed).permutation(len(matched))[:N_CORRUPTED]
    return CalibrationQueries(
        matched=look(matched),
        no_match=look(queries.withheld) if strangers else look(matched, hide_label=True),
        strangers=strangers,
        are_views=False,
        corrupted=look(corrupted(matched, seed).subset(chosen)),
        corrupted_of=chosen,
        outliers=None if queries.outliers is None else look(queries.outliers),
        sources=np.arange(len(matched)),
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
) -> Calibration:
    """Ask the gallery everything, and fit the decision layer to what it finds.

    Parameters
    ----------
    images : of the gallery, in random order, at most `N_DETECTOR_IMAGES`.
    are_views : whether the queries are views of gallery images, made up, because nobody knows what
        belongs together; then each image is its own label.
    unseen : whether the encoder has learned nothing from the gallery's images.

    Raises
    ------
    CalibrationError : too few queries, or too few images.
    """
    embeddings = embed_with_features(encoder, images, "features of the gallery")
    detector = fit_detector(embeddings, images.label_codes(), seed)
    means = label_means(gallery)
    look = partial(observe, encoder, gallery, detector, means)
    matched = queries.matched
    observed = replace(asked(look, queries, seed), are_views=are_views)
    if unseen:
        left_out, sources = left_out_queries(
            gallery, means, images, embeddings, matched, seed, strangers=observed.strangers
        )
        observed = replace(observed, left_out=left_out, sources=sources)
    pictures = track(range(len(matched)), "quality of the queries", len(matched))
    measures = [quality_measures(matched.pixels(position)) for position in pictures]
    return fit_calibration(
        detector,
        means,
        observed,
        encoder.fingerprint,
        search_settings(gallery),
        config,
        seed,
        ordinary_limits(np.stack(measures)),
    )
