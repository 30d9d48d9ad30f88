"""Calibration for text queries: captions of items or labels, or search texts that led to a click.

The similarities and outlier scores of texts differ from those of images. So text queries have a
separate calibration for the same gallery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from index_builder.calibration.detector import fit_detector
from index_builder.calibration.fit import MIN_QUERIES, fit_calibration
from index_builder.calibration.item_queries import DetectorFolds
from index_builder.calibration.queries import CalibratedGallery, CalibrationQueries
from index_builder.calibration.retrieval import (
    Named,
    fit_label_folds,
    look_up,
    look_up_hidden,
)
from index_builder.calibration.setup import list_length
from index_builder.configuration.build import CalibrationConfig
from index_builder.progress import track_parts
from model_store.decision import Calibration, label_means
from model_store.encoder.contract import Embeddings, TextEncoder
from model_store.errors import CalibrationError
from model_store.gallery import Gallery
from model_store.table import Table

BATCH = 64

_NOTHING = "\0"
"""First character of the artificial label of a text without a match. Labels of a gallery never
contain this null character."""


@dataclass(frozen=True, slots=True)
class Captions(Table):
    """N search texts, and the label that each text describes.

    Attributes
    ----------
    texts : (N,).
    labels : (N,) label that each text describes; in a gallery without labels, the id of an item.
        None if no item matches the text.
    clusters : (N,) cluster of each text. Texts of one cluster are not independent.
    sources : (N,) origin of each text; None if unknown.
    """

    texts: tuple[str, ...]
    labels: tuple[str | None, ...]
    clusters: tuple[str, ...]
    sources: tuple[str, ...] | None = None

    @property
    def named(self) -> Named:
        """The labels of the texts.

        A text without a match gets an artificial label. All such texts of one cluster get the same
        artificial label.
        """
        return Named(
            tuple(
                _NOTHING + cluster if label is None else label
                for label, cluster in zip(self.labels, self.clusters, strict=True)
            )
        )


def calibrate_texts(
    encoder: TextEncoder,
    gallery: Gallery,
    captions: Captions,
    config: CalibrationConfig,
    seed: int,
) -> Calibration:
    """Search with every caption, and fit the decision layer for texts to the results.

    Absent queries are captions without a match. If all captions have a match, each caption is used
    a second time, as an absent query. The label of the caption is then hidden from the result list
    and from the outlier detector. The detector that the service uses is fitted to all captions with
    a match. For the calibration, each caption is scored by a detector that was not fitted to this
    caption.

    Raises
    ------
    CalibrationError : there are too few captions with a match, or too few without a match, or all
        captions have the same label.
    """
    captions = captions.at(np.random.default_rng(seed).permutation(len(captions)))
    about = np.array([label is not None for label in captions.labels], np.bool_)
    matched, absent = captions.at(np.flatnonzero(about)), captions.at(np.flatnonzero(~about))
    _require_enough(matched, absent)
    named, embeddings = matched.named, _embedded(encoder, matched.texts)
    codes = np.unique(np.array(named.labels), return_inverse=True)[1]
    clusters = np.unique(np.array(matched.clusters), return_inverse=True)[1].astype(np.int64)
    means, n_listed = label_means(gallery), list_length(gallery, 0, hide_labels=len(absent) == 0)
    detector = fit_detector(embeddings, codes)
    scores = DetectorFolds.of(embeddings, codes, clusters).scores(embeddings, clusters)
    found = look_up(gallery, means, named, embeddings, scores, n_listed)
    if len(absent) == 0:
        folds = fit_label_folds(embeddings, named.labels, seed)
        of_absent, absent_of = look_up_hidden(gallery, means, named, embeddings, folds, n_listed)
    else:
        absent_of, embedded = None, _embedded(encoder, absent.texts)
        scores = detector.scores(embedded)
        of_absent = look_up(gallery, means, absent.named, embedded, scores, n_listed)
    queries = CalibrationQueries(
        matched=found,
        absent=of_absent,
        absent_of=absent_of,
        are_views=False,
        clusters=clusters,
        sources=matched.sources,
        absent_sources=absent.sources,
        unseen=True,
    )
    setup = CalibratedGallery.of(encoder, gallery, detector, means, n_listed)
    calibration = fit_calibration(setup, queries, config, seed, quality_limits={})
    return replace(calibration, report={**calibration.report, "queries": "captions"})


def _require_enough(matched: Captions, absent: Captions) -> None:
    if len(matched) < MIN_QUERIES or 0 < len(absent) < MIN_QUERIES:
        raise CalibrationError(
            f"{len(matched)} captions have a match in the gallery and {len(absent)} have none; "
            f"wanted at least {MIN_QUERIES} with a match, and either none or at least "
            f"{MIN_QUERIES} without. Add captions, for example search texts with the clicked items."
        )
    if len(set(matched.labels)) == 1:
        raise CalibrationError(
            f"All captions are about {matched.labels[0]!r}, so there are no wrong answers to "
            "compare with. Add captions of other labels."
        )


def _embedded(encoder: TextEncoder, texts: Sequence[str]) -> Embeddings:
    """Embed texts in batches."""
    parts = [
        encoder.encode(encoder.tokenize(texts[start : start + BATCH]))
        for start in track_parts(len(texts), BATCH, "captions")
    ]
    return Embeddings.concatenate(parts)
