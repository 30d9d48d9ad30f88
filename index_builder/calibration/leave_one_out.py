"""Gallery images as calibration queries, each hidden from its own list."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import MIN_REFERENCES, fit_detector
from index_builder.datasets import LabelledImages
from model_store.decision import OUTLIER_SIGNALS
from model_store.encoder.contract import Embeddings
from model_store.gallery import Gallery

ENOUGH = 1000
"""Matched queries above which more would teach little; gallery images make up for those missing."""

N_FOLDS = 10
"""Number of folds of the gallery for outlier signals: a detector that knows nine tenths of it is
nearly as good as one that knows all, and one that knows the image itself would find it at distance
zero."""


def leave_one_out_queries(
    images: LabelledImages, n_held_out: int, enough: int = ENOUGH
) -> NDArray[np.int64]:
    """Choose as many gallery images as there are held-out queries too few.

    Parameters
    ----------
    images : of the gallery, in random order; the encoder learned nothing from them.
    n_held_out : matched queries that were held out.
    enough : matched queries to have in all.

    Returns
    -------
    (m,) their places: of images whose label another image has that is not of their group.
    """
    if len(images) * (N_FOLDS - 1) // N_FOLDS < MIN_REFERENCES:
        return np.empty(0, dtype=np.int64)
    codes, groups = images.label_codes(), group_numbers(images)
    of_label, _ = np.unique(np.stack([codes, groups]), axis=1)
    groups_of_label = np.bincount(of_label, minlength=int(codes.max(initial=0)) + 1)
    paired = np.flatnonzero(groups_of_label[codes] > 1)
    return paired[: max(enough - n_held_out, 0)]


def rows_of_groups(gallery: Gallery, images: LabelledImages) -> NDArray[np.int64]:
    """Return the rows (N, m) of the gallery's items of each image's group, itself among them.

    ``images`` are of the gallery; −1 fills the rows of smaller groups.
    """
    rows = np.arange(gallery.n_items)
    row_of = {item.id: row for row, item in zip(rows, gallery.items(rows), strict=True)}
    own = np.array([row_of[name] for name in images.ids], dtype=np.int64)
    groups = group_numbers(images)
    order = np.argsort(groups, kind="stable")
    counts = np.bincount(groups)
    place = np.empty(len(groups), dtype=np.int64)
    place[order] = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    members = np.full((len(counts), int(counts.max())), -1, dtype=np.int64)
    members[groups, place] = own
    return members[groups]


def group_numbers(*collections: LabelledImages) -> NDArray[np.int64]:
    """Number the groups of the images of all ``collections`` in turn.

    Images of one group, as its owner names it, and exact copies share a number.
    """
    keys = [key for images in collections for key in _group_keys(images)]
    return np.unique(np.array(keys), return_inverse=True)[1].astype(np.int64)


def _group_keys(images: LabelledImages) -> list[str]:
    if images.groups is not None:
        return [f"group {group}" for group in images.groups]
    return [
        hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
        for pixels in map(images.pixels, range(len(images)))
    ]


def out_of_fold_signals(
    embeddings: Embeddings,
    codes: NDArray[np.integer[Any]],
    groups: NDArray[np.int64],
    seed: int,
    n_folds: int = N_FOLDS,
) -> NDArray[np.float64]:
    """Return outlier signals (N, S) of gallery images, by detectors that were not fitted on them.

    Parameters
    ----------
    embeddings, codes : N of them, in random order, with their labels.
    groups : (N,) images of one group are in one fold.
    seed : of the detectors.
    """
    signals = np.empty((len(embeddings), len(OUTLIER_SIGNALS)))
    folds = groups % n_folds
    for fold in range(n_folds):
        kept, left_out = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if len(left_out):
            fitted = fit_detector(embeddings.at(kept), codes[kept], seed)
            signals[left_out] = fitted.signals(embeddings.at(left_out))
    return signals
