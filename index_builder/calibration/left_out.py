"""Gallery images as calibration queries, each hidden from its own list."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import MIN_REFERENCES, fit_detector
from index_builder.calibration.fit import LeftOut
from index_builder.datasets import LabelledImages
from index_builder.observation import observe_left_out
from model_store.decision import OUTLIER_SIGNALS, LabelMeans
from model_store.encoder import Embeddings
from model_store.gallery import Gallery

ENOUGH = 1000
"""Matched queries above which more would teach little; gallery images make up for those missing."""

N_FOLDS = 10
"""Of the gallery, for outlier signals: a detector that knows nine tenths of it is nearly as good as
one that knows all, and one that knows the image itself would find it at distance nought."""


def left_out_queries(
    gallery: Gallery,
    means: LabelMeans,
    images: LabelledImages,
    embeddings: Embeddings,
    held_out: LabelledImages,
    seed: int,
    *,
    strangers: bool,
) -> tuple[LeftOut | None, NDArray[np.int64]]:
    """As many gallery images as there are held-out queries too few.

    Parameters
    ----------
    images, embeddings : of the gallery, in random order; the encoder learned nothing from them.
    held_out : the matched calibration queries.
    seed : of the detectors.
    strangers : whether there are queries of withheld labels; else the images serve as queries
        without a match too, their own label hidden from them.

    Returns
    -------
    Those of them whose label another image has, None where none are needed or fit; and what each of
    the held-out queries shows.
    """
    codes = images.label_codes()
    paired = np.flatnonzero(np.bincount(codes)[codes] > 1)
    chosen = paired[: max(ENOUGH - len(held_out), 0)]
    if len(chosen) == 0 or len(images) * (N_FOLDS - 1) // N_FOLDS < MIN_REFERENCES:
        return None, np.arange(len(held_out))
    signals = out_of_fold_signals(embeddings, codes, seed)[chosen]
    some, of_some = images.subset(chosen), _at(embeddings, chosen)
    sources = pictures(held_out, some)
    no_match = None
    if not strangers:
        no_match = observe_left_out(gallery, means, some, of_some, signals, hide_label=True)
    matched = observe_left_out(gallery, means, some, of_some, signals)
    return LeftOut(matched, no_match, sources[len(held_out) :]), sources[: len(held_out)]


def pictures(*collections: LabelledImages) -> NDArray[np.int64]:
    """Number what images show, those of all collections in turn: exact copies share a number."""
    prints = [
        hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
        for images in collections
        for pixels in map(images.pixels, range(len(images)))
    ]
    return np.unique(np.array(prints), return_inverse=True)[1].astype(np.int64)


def out_of_fold_signals(
    embeddings: Embeddings, codes: NDArray[np.integer[Any]], seed: int, n_folds: int = N_FOLDS
) -> NDArray[np.float64]:
    """Outlier signals (N, S) of gallery images, by detectors that were not fitted on them.

    Parameters
    ----------
    embeddings, codes : N of them, in random order, with their labels.
    seed : of the detectors.
    """
    signals = np.empty((len(embeddings), len(OUTLIER_SIGNALS)))
    folds = np.arange(len(embeddings)) % n_folds
    for fold in range(n_folds):
        kept, left_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        fitted = fit_detector(_at(embeddings, kept), codes[kept], seed)
        signals[left_out] = fitted.signals(_at(embeddings, left_out))
    return signals


def _at(embeddings: Embeddings, rows: NDArray[np.int64]) -> Embeddings:
    return Embeddings(embeddings.mean[rows], embeddings.variance[rows], embeddings.features[rows])
