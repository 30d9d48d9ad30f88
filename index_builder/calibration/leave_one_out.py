"""Uses gallery images as calibration queries; each image is hidden from its own results."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.detector import MIN_REFERENCES, fit_detectors
from index_builder.datasets import LabelledImages
from model_store.decision import OutlierDetector
from model_store.encoder.contract import Embeddings
from model_store.gallery import Gallery

ENOUGH = 1000
"""Sufficient number of matched queries. If there are fewer matched queries than this number,
gallery images become queries, too."""

ENOUGH_WITH_PARENTS = 2000
"""If labels have parents, this number of matched queries is sufficient. The error bounds of parents
are computed only from queries without a confident label. At most half of all queries have no
confident label."""

N_FOLDS = 20
"""Number of folds into which the gallery is divided for outlier scores. A detector must not be
fitted to an image that it scores. A detector that was fitted to the image would contain a copy of
the image, and the distance to this copy would be zero. With 20 folds, each detector is almost as
good as a detector fitted to all images."""


@dataclass(frozen=True, slots=True)
class PutItems:
    """Gallery images that were added after the queries were held out.

    Attributes
    ----------
    places : (m,) indices of these images.
    n_queries : number of these images that become queries. With this number, the share of added
        images is the same among the queries as in the gallery.
    """

    places: NDArray[np.int64]
    n_queries: int

    @classmethod
    def of(
        cls, gallery: Gallery, images: LabelledImages, was_put: NDArray[np.bool_], n_held_out: int
    ) -> PutItems:
        """Choose the added images whose label also belongs to another gallery item.

        Parameters
        ----------
        images : gallery images in random order.
        was_put : (N,) mask of the images that were added later.
        n_held_out : number of held-out matched queries. The held-out queries are representative
            only of the gallery without the added images.
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
    """Choose gallery images as additional queries, if there are too few held-out queries.

    Parameters
    ----------
    images : gallery images in random order; the encoder was not trained on them.
    n_held_out : number of held-out matched queries.
    enough : wanted total of matched queries.
    put : items added later. Items added later are chosen first, because the held-out queries do not
        represent these items.

    Returns
    -------
    (m,) indices of the chosen images. Images of ``put`` come first. For each other chosen image, an
    image of another group has the same label.
    """
    if len(images) * (N_FOLDS - 1) // N_FOLDS < MIN_REFERENCES:
        return np.empty(0, dtype=np.int64)
    paired = np.flatnonzero(has_partner(images))
    if put is None:
        return paired[: max(enough - n_held_out, 0)]
    of_put = put.places[: put.n_queries]
    others = np.setdiff1d(paired, put.places)  # keeps the random order
    return np.concatenate([of_put, others[: max(enough - n_held_out - len(of_put), 0)]])


def has_partner(images: LabelledImages) -> NDArray[np.bool_]:
    """Return a mask (N,): True for an image if an image of another group has the same label."""
    if not len(images):
        return np.zeros(0, dtype=bool)
    codes, groups = images.label_codes(), group_numbers(images)
    of_label, _ = np.unique(np.stack([codes, groups]), axis=1)
    groups_of_label = np.bincount(of_label, minlength=int(codes.max()) + 1)
    paired: NDArray[np.bool_] = groups_of_label[codes] > 1
    return paired


def rows_of_groups(gallery: Gallery, images: LabelledImages) -> NDArray[np.int64]:
    """Return the gallery rows (N, m) of each image's group, including the image.

    ``images`` are gallery images. The rows of smaller groups are padded with −1.
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
    """Choose at most ``n_most`` images from ``order``; no group is split.

    The results of an image exclude the image and all other chosen images of its group. If a group
    were split, an image would find the images of its group that were not chosen.

    Parameters
    ----------
    groups : (N,) groups of all images; None if each image is its own group.
    order : (N,) indices of the images, in random order.
    """
    if groups is None or len(order) <= n_most:
        return order[:n_most]
    _, firsts, numbers, sizes = np.unique(
        np.asarray(groups), return_index=True, return_inverse=True, return_counts=True
    )
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    visited = np.argsort(place[firsts])  # random order of groups, independent of their sizes
    taken = visited[np.cumsum(sizes[visited]) <= n_most]
    return order[np.isin(numbers[order], taken)]


def group_numbers(*collections: LabelledImages) -> NDArray[np.int64]:
    """Return the group numbers of the images of all ``collections``, concatenated.

    Images of the same group have the same number. Without groups, exact copies have the same
    number.
    """
    keys = [key for images in collections for key in group_keys(images)]
    return np.unique(np.array(keys), return_inverse=True)[1].astype(np.int64)


def group_keys(images: LabelledImages) -> list[str]:
    """Return a key for the group of each image; without groups, a hash of the image."""
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
    """Outlier detectors of a gallery; each is fitted without one fold of the gallery's groups."""

    detectors: tuple[OutlierDetector | None, ...]

    @classmethod
    def of(
        cls,
        embeddings: Embeddings,
        codes: NDArray[np.integer[Any]],
        groups: NDArray[np.int64],
        n_folds: int = N_FOLDS,
    ) -> DetectorFolds:
        """Fit the detectors to N images of the gallery.

        Parameters
        ----------
        embeddings, codes : embeddings and label codes of the images, in random order.
        groups : (N,) group numbers; a group is never split between folds.
        """
        kept = [np.flatnonzero(groups % n_folds != fold) for fold in range(n_folds)]
        is_empty = [len(rows) == len(groups) and n_folds > 1 for rows in kept]
        subsets = [rows for rows, empty in zip(kept, is_empty, strict=True) if not empty]
        fitted = fit_detectors(embeddings, codes, subsets)
        return cls(tuple(None if empty else next(fitted) for empty in is_empty))

    def scores(self, embeddings: Embeddings, groups: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score each image with a detector fitted without the image's group; return (B,).

        Parameters
        ----------
        groups : (B,) group numbers. The detectors must have been fitted with the same group
            numbers.
        """
        scores = np.empty(len(embeddings))
        known = next(one for one in self.detectors if one is not None)
        for fold, detector in enumerate(self.detectors):
            rows = np.flatnonzero(groups % len(self.detectors) == fold)
            if len(rows):
                scores[rows] = (detector or known).scores(embeddings.at(rows))
        return scores
