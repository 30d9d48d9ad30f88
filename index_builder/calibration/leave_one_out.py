"""Gallery images as calibration queries, each hidden from its own list."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import MIN_REFERENCES, fit_detector
from index_builder.datasets import LabelledImages
from model_store.decision import OutlierDetector
from model_store.encoder.contract import Embeddings
from model_store.gallery import Gallery

ENOUGH = 1000
"""Matched queries above which more would teach little; gallery images make up for those missing."""

ENOUGH_WITH_PARENTS = 2000
"""The same where labels have parents: what is promised of a parent rests on the queries alone that
no label was sure enough for, half of them or fewer."""

N_FOLDS = 20
"""Number of folds of the gallery for outlier scores: a detector that knows most of it is
nearly as good as one that knows all, and one that knows the image itself would find it at distance
zero."""


@dataclass(frozen=True, slots=True)
class PutItems:
    """Items among the gallery images that were put since the queries were held out.

    Attributes
    ----------
    places : (m,) of them among the images.
    n_queries : so many of them are to be queries, as speak for them in a stream like the gallery.
    """

    places: NDArray[np.int64]
    n_queries: int

    @classmethod
    def of(
        cls, gallery: Gallery, images: LabelledImages, was_put: NDArray[np.bool_], n_held_out: int
    ) -> PutItems:
        """Choose those whose label another item of the gallery has.

        Parameters
        ----------
        images : of the gallery, in random order.
        was_put : (N,) which of them were put.
        n_held_out : matched queries, which speak for the others.
        """
        codes = gallery.label_codes(np.arange(gallery.n_items))
        counts = np.bincount(codes[codes >= 0], minlength=len(gallery.labels))
        several = {gallery.labels[code] for code in np.flatnonzero(counts > 1).tolist()}
        known = np.array([label in several for label in images.labels], dtype=bool)
        share = float(was_put.mean()) if len(images) else 0.0
        n_queries = round(n_held_out * share / max(1 - share, 0.5 / max(len(images), 1)))
        return cls(np.flatnonzero(was_put & known), n_queries)


def leave_one_out_queries(
    images: LabelledImages,
    n_held_out: int,
    enough: int = ENOUGH,
    put: PutItems | None = None,
) -> NDArray[np.int64]:
    """Choose as many gallery images as there are held-out queries too few.

    Parameters
    ----------
    images : of the gallery, in random order; the encoder learned nothing from them.
    n_held_out : matched queries that were held out.
    enough : matched queries to have in all.
    put : items that no held-out query speaks for, and which therefore are queries first.

    Returns
    -------
    (m,) their places: of images whose label another image has that is not of their group.
    """
    if len(images) * (N_FOLDS - 1) // N_FOLDS < MIN_REFERENCES:
        return np.empty(0, dtype=np.int64)
    paired = np.flatnonzero(has_partner(images))
    if put is None:
        return paired[: max(enough - n_held_out, 0)]
    of_put = put.places[: put.n_queries]
    others = np.setdiff1d(paired, put.places)  # in their order, which is random
    return np.concatenate([of_put, others[: max(enough - n_held_out - len(of_put), 0)]])


def has_partner(images: LabelledImages) -> NDArray[np.bool_]:
    """Return which images (N,) have another image of their label that is not of their group."""
    if not len(images):
        return np.zeros(0, dtype=bool)
    codes, groups = images.label_codes(), group_numbers(images)
    of_label, _ = np.unique(np.stack([codes, groups]), axis=1)
    groups_of_label = np.bincount(of_label, minlength=int(codes.max()) + 1)
    paired: NDArray[np.bool_] = groups_of_label[codes] > 1
    return paired


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


def whole_groups(
    groups: Sequence[str] | NDArray[np.int64] | None, order: NDArray[np.int64], n_most: int
) -> NDArray[np.int64]:
    """Return the first of the images ``order``, at most ``n_most`` of them, without half a group.

    In a group that is cut, an image excluded from its own results would find images of the same
    object that no longer count as such.

    Parameters
    ----------
    groups : (N,) of all images; None where each is a separate one.
    order : (N,) the images, in random order.
    """
    if groups is None or len(order) <= n_most:
        return order[:n_most]
    _, firsts, numbers, sizes = np.unique(
        np.asarray(groups), return_index=True, return_inverse=True, return_counts=True
    )
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    visited = np.argsort(place[firsts])  # by one image each, however many a group has
    taken = visited[np.cumsum(sizes[visited]) <= n_most]
    return order[np.isin(numbers[order], taken)]


def group_numbers(*collections: LabelledImages) -> NDArray[np.int64]:
    """Number the groups of the images of all ``collections`` in turn.

    Images of one group, as its owner names it, and exact copies share a number.
    """
    keys = [key for images in collections for key in group_keys(images)]
    return np.unique(np.array(keys), return_inverse=True)[1].astype(np.int64)


def group_keys(images: LabelledImages) -> list[str]:
    """Name the group of each image; that of an image without one is its content."""
    if images.groups is not None:
        return [f"group {group}" for group in images.groups]
    contents = images.contents()
    if contents is not None:
        return [content.hex() for content in contents]
    return [
        hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()
        for pixels in map(images.pixels, range(len(images)))
    ]


@dataclass(frozen=True, slots=True)
class DetectorFolds:
    """Outlier detectors of a gallery, each of which has not seen one fold of its groups."""

    detectors: tuple[OutlierDetector | None, ...]

    @classmethod
    def of(
        cls,
        embeddings: Embeddings,
        codes: NDArray[np.integer[Any]],
        groups: NDArray[np.int64],
        seed: int,
        n_folds: int = N_FOLDS,
    ) -> DetectorFolds:
        """Fit the detectors to N images of the gallery.

        Parameters
        ----------
        embeddings, codes : of the images, in random order, with their labels.
        groups : (N,) images of one group are in one fold.
        seed : of the detectors.
        """
        detectors: list[OutlierDetector | None] = []
        for fold in range(n_folds):
            kept = np.flatnonzero(groups % n_folds != fold)
            is_empty = len(kept) == len(groups) and n_folds > 1
            fitted = None if is_empty else fit_detector(embeddings.at(kept), codes[kept], seed)
            detectors.append(fitted)
        return cls(tuple(detectors))

    def scores(self, embeddings: Embeddings, groups: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return outlier scores (B,) of B images by detectors that have not seen their groups.

        Parameters
        ----------
        groups : (B,) numbered as those of the images that the detectors were fitted to.
        """
        scores = np.empty(len(embeddings))
        known = next(one for one in self.detectors if one is not None)
        for fold, detector in enumerate(self.detectors):
            rows = np.flatnonzero(groups % len(self.detectors) == fold)
            if len(rows):
                scores[rows] = (detector or known).scores(embeddings.at(rows))
        return scores
