"""Uses the items of a gallery as calibration queries, so that no image has to be held out.

Each item is a query, with which the rest of the gallery is searched. If the encoder's last layer
was fitted to an item, the similarities of this item are too high. So a layer that was fitted
without the item embeds both the item and the gallery. If the item is used as an absent query, the
layer was fitted without all items of its label. See `index_builder.whitening`. These layers are
fitted to fewer items than the layer of the service, so the results are slightly worse.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.progress import track
from index_builder.vectors.encoder import embed_with_features
from index_builder.whitening import cross_fitted_whitenings
from model_store.decision import OutlierDetector
from model_store.encoder.contract import Embeddings, Encoder
from model_store.errors import CalibrationError
from model_store.gallery import Gallery
from model_store.gallery.protocol import find_row
from model_store.table import SHARED, Table

from .detector import MIN_REFERENCES, fit_detectors, scores_by_fold

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


def put_queries(
    gallery: Gallery, images: LabelledImages, was_put: NDArray[np.bool_], n_held_out: int
) -> NDArray[np.int64]:
    """Choose added images as queries; their share is the same among the queries as in the gallery.

    The label of a chosen image also belongs to a gallery item that is not in the image's group.

    Parameters
    ----------
    images : gallery images in random order.
    was_put : (N,) mask of the images that were added after the queries were held out.
    n_held_out : number of held-out matched queries. The held-out queries are representative only of
        the gallery without the added images.
    """
    if not was_put.any():
        return np.empty(0, dtype=np.int64)
    codes = gallery.label_codes(np.arange(gallery.n_items))
    counts = np.bincount(codes[codes >= 0], minlength=len(gallery.labels)).tolist()
    count_of = dict(zip(gallery.labels, counts, strict=True))
    pairs = np.stack([images.label_codes(), group_numbers(images)])
    _, pair, n_own = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    own = n_own[pair.reshape(-1)].tolist()  # images with this label in the same group
    known = np.array(
        [count_of.get(label, 0) > n for label, n in zip(images.labels, own, strict=True)]
    )
    share = float(was_put.mean()) if len(images) else 0.0
    n_queries = round(n_held_out * share / max(1 - share, 0.5 / max(len(images), 1)))
    return np.flatnonzero(was_put & known)[:n_queries]


def leave_one_out_queries(
    images: LabelledImages,
    n_held_out: int,
    enough: int = ENOUGH,
    was_put: NDArray[np.bool_] | None = None,
    put: Sequence[int] | NDArray[np.int64] = (),
) -> NDArray[np.int64]:
    """Choose gallery images as additional queries, if there are too few held-out queries.

    Parameters
    ----------
    images : gallery images in random order; the encoder was not trained on them.
    n_held_out : number of held-out matched queries.
    enough : wanted total of matched queries.
    was_put, put : see `put_queries`, and its result.

    Returns
    -------
    (m,) indices of the chosen images. Images of ``put`` come first, because the held-out queries do
    not represent added images. For each other chosen image, an image of another group has the same
    label.
    """
    if len(images) * (N_FOLDS - 1) // N_FOLDS < MIN_REFERENCES:
        return np.empty(0, dtype=np.int64)
    paired = has_partner(images)
    others = np.flatnonzero(paired if was_put is None else paired & ~was_put)
    chosen = others[: max(enough - n_held_out - len(put), 0)]
    return np.concatenate([np.array(put, dtype=np.int64), chosen])


def has_partner(images: LabelledImages) -> NDArray[np.bool_]:
    """Return a mask (N,): True for an image if an image of another group has the same label."""
    return partnered(images.label_codes(), group_numbers(images))


def partnered(labels: NDArray[np.integer[Any]], groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask (N,): True for an image if an image of another group has the same label.

    Parameters
    ----------
    labels : (N,) label codes; −1 for an image without a label. No image of its group gets True,
        because the image may show the same as the others of its group.
    groups : (N,) group numbers, from 0.
    """
    labelled = labels >= 0
    if not labelled.any():
        return labelled
    n_groups = int(groups.max()) + 1
    of_label = (
        np.unique(labels[labelled].astype(np.int64) * n_groups + groups[labelled]) // n_groups
    )
    groups_of_label = np.bincount(of_label)
    unknown = np.bincount(groups[~labelled], minlength=n_groups) > 0
    paired: NDArray[np.bool_] = labelled & (groups_of_label[labels] > 1) & ~unknown[groups]
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

    detectors: tuple[OutlierDetector, ...]

    @classmethod
    def of(
        cls,
        embeddings: Embeddings,
        codes: NDArray[np.integer[Any]],
        groups: NDArray[np.int64],
        n_folds: int = N_FOLDS,
        weights: Sequence[NDArray[np.float32]] = (),
    ) -> DetectorFolds:
        """Fit the detectors to N images of the gallery.

        Parameters
        ----------
        embeddings, codes : embeddings and label codes of the images, in random order.
        groups : (N,) group numbers; a group is never split between folds.
        weights : for each fold, the last layer (D, F) that embeds the images for its detector. If
            empty, all detectors have the means of ``embeddings``.

        Raises
        ------
        CalibrationError : there are fewer than `MIN_REFERENCES` images, or images outside the
            largest group.
        """
        n_others = len(groups) - np.bincount(groups).max(initial=0)
        if n_others < MIN_REFERENCES <= len(groups):
            raise CalibrationError(
                f"All except {n_others} of {len(groups)} calibration queries are equal or belong "
                f"to one group; outlier detection needs at least {MIN_REFERENCES} other queries. "
                "Add queries that differ, in other groups."
            )
        kept = [np.flatnonzero(groups % n_folds != fold) for fold in range(n_folds)]
        is_empty = [len(rows) == len(groups) and n_folds > 1 for rows in kept]
        subsets = [rows for rows, empty in zip(kept, is_empty, strict=True) if not empty]
        held = [weight for weight, empty in zip(weights, is_empty, strict=False) if not empty]
        fitted = list(fit_detectors(embeddings, codes, subsets, held or None))
        others = iter(fitted)
        return cls(tuple(fitted[0] if empty else next(others) for empty in is_empty))

    def scores(self, embeddings: Embeddings, groups: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score each image with a detector fitted without the image's group; return (B,).

        Parameters
        ----------
        groups : (B,) group numbers. The detectors must have been fitted with the same group
            numbers.
        """
        return scores_by_fold(self.detectors, embeddings, groups % len(self.detectors))


MOST_QUERIES = 2_000
"""Maximum number of items that become queries. More queries hardly improve the calibration."""


Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CrossFittedLayers:
    """Last layers of one encoder. Each layer is fitted without one fold of the items.

    Attributes
    ----------
    weights : the weights (D, F) of each fold.
    fold_of_item : for each item id, the fold whose layer was fitted with the item's label but
        without the item.
    fold_of_label : for each label, the fold whose layer was fitted without the label.
    features : (N, F) features of the items, in the order of ``fold_of_item``. A query must be
        compared with items that its own layer embeds, because the layer of the service has moved
        the other items of the query's label towards the query.
    not_fitted : ids of the items that no layer was fitted to.
    """

    weights: tuple[NDArray[np.float32], ...]
    fold_of_item: dict[str, int]
    fold_of_label: dict[str, int]
    features: NDArray[np.float32]
    not_fitted: tuple[str, ...]

    @classmethod
    def of(
        cls,
        items: LabelledImages,
        features: NDArray[np.floating[Any]],
        fitted_to: Integers,
        weight: NDArray[np.floating[Any]],
        seed: int,
    ) -> CrossFittedLayers:
        """Fit the layers.

        Parameters
        ----------
        items : N items of the gallery.
        features : (N, F) features of ``items``.
        fitted_to : the items to which the layer that the service uses is fitted.
        weight : (D, F), the weights of the layer that the service uses.
        seed : seed of the folds.
        """
        generator = np.random.default_rng(seed)
        codes, groups = items.label_codes(), group_numbers(items)
        n_labels = int(codes.max()) + 1
        n_folds = min(N_FOLDS, len(items))
        of_label = generator.permutation(n_labels) % n_folds
        of_item = _item_folds(codes, groups, of_label, n_folds, generator)
        left_out = [
            np.flatnonzero(((of_item == fold) | (of_label[codes] == fold))[fitted_to])
            for fold in range(n_folds)
        ]
        layers = cross_fitted_whitenings(features[fitted_to], codes[fitted_to], left_out, weight)
        return cls(
            tuple(track(layers, "cross-fitting", n_folds)),
            dict(zip(items.ids, of_item.tolist(), strict=True)),
            dict(zip(items.labels, of_label[codes].tolist(), strict=True)),
            np.asarray(features, dtype=np.float32),
            tuple(items.ids[row] for row in np.setdiff1d(np.arange(len(items)), fitted_to)),
        )

    def of_items(self, ids: Sequence[str]) -> Integers:
        """Return a fold for each item (B,) that left it out; no fold knows an unknown item."""
        return np.array([self.fold_of_item.get(name, 0) for name in ids], dtype=np.int64)

    def of_labels(self, labels: Sequence[str]) -> Integers:
        """Return a fold for each label (B,) that left it out; no fold knows an unknown label."""
        return np.array([self.fold_of_label.get(name, 0) for name in labels], dtype=np.int64)

    def queries(self, images: LabelledImages, embeddings: Embeddings) -> ItemQueries:
        """Return B images as queries, embedded by layers without the image, and without its label.

        Parameters
        ----------
        embeddings : embeddings of ``images``; only the means are replaced.
        """
        return ItemQueries(
            images,
            self.without_item(images.ids, embeddings),
            self.without_label(images.labels, embeddings),
            self,
        )

    def without_item(self, ids: Sequence[str], embeddings: Embeddings) -> Embeddings:
        """Embed B items; the layer of each item was fitted without this item."""
        return self._embedded(self.of_items(ids), embeddings)

    def without_label(self, labels: Sequence[str], embeddings: Embeddings) -> Embeddings:
        """Embed B items; the layer of each item was fitted without the item's label."""
        return self._embedded(self.of_labels(labels), embeddings)

    def _embedded(self, folds: Integers, embeddings: Embeddings) -> Embeddings:
        mean = np.empty_like(embeddings.mean)
        for fold in np.unique(folds):
            rows = np.flatnonzero(folds == fold)
            mean[rows] = embeddings.features[rows] @ self.weights[fold].T
        return replace(embeddings, mean=mean)


def _item_folds(
    codes: Integers,
    groups: Integers,
    of_label: Integers,
    n_folds: int,
    generator: np.random.Generator,
) -> Integers:
    """Return for each item the number of the fold that leaves out this item, (N,).

    All items of a group are in the same fold, and the groups of a label are spread evenly over the
    folds. Each label also has a fold, ``of_label`` (C,), that leaves out the whole label. An item's
    fold is never the fold that leaves out the item's label. The label of a group is the label of
    its first item.
    """
    n_groups = int(groups.max()) + 1
    label = np.zeros(n_groups, dtype=np.int64)
    label[groups[::-1]] = codes[::-1]  # the label of each group's first item
    order = generator.permutation(n_groups)
    order = order[np.argsort(label[order], kind="stable")]
    starts = np.searchsorted(label[order], label[order])
    begin = generator.integers(n_folds, size=n_groups)[starts]
    place = np.empty(n_groups, dtype=np.int64)
    place[order] = np.arange(n_groups) - starts + begin
    folds = (of_label[label] + 1 + place % max(n_folds - 1, 1)) % n_folds
    return folds[groups]


@dataclass(frozen=True, slots=True)
class ItemQueries(Table):
    """B items that are used as queries.

    Attributes
    ----------
    images : ids, labels and groups of the items.
    alone : embedding of each item from an encoder fitted without this item.
    unlabelled : embedding of each item from an encoder fitted without the item's label.
    layers : the layers of these embeddings; None if no layer was fitted to an item.
    """

    images: LabelledImages
    alone: Embeddings
    unlabelled: Embeddings
    layers: CrossFittedLayers | None = field(default=None, metadata=SHARED)

    def own_rows(self, gallery: Gallery, others: LabelledImages) -> Integers:
        """Return the rows (B, m) of each item's group, including the item, padded with −1.

        Parameters
        ----------
        others : gallery images that are not queries. An image of ``others`` can belong to the group
            of a query.
        """
        keys = group_keys(self.images)
        rows: dict[str, set[int]] = {key: set() for key in keys}
        for images, names in ((self.images, keys), (others, group_keys(others))):
            for name, key in zip(images.ids, names, strict=True):
                row = find_row(gallery, name) if key in rows else None
                rows.get(key, set()).update(() if row is None else (row,))
        own = [sorted(rows[key]) for key in keys]
        table = np.full((len(own), max((len(one) for one in own), default=1) or 1), -1)
        for place, one in enumerate(own):
            table[place, : len(one)] = one
        return table.astype(np.int64)


def cross_fitted_items(
    encoder: Encoder,
    gallery: LabelledImages,
    fitted_to: LabelledImages,
    images: LabelledImages,
    weight: NDArray[np.floating[Any]],
    seed: int,
) -> ItemQueries:
    """Choose items as queries; embed each item by layers that were fitted without this item.

    Parameters
    ----------
    gallery : all items.
    fitted_to : the items that the last layer was fitted to.
    images : gallery images in random order; the first images become queries.
    weight : (D, F), the last layer.
    seed : seed of the folds.
    """
    known = embed_with_features(encoder, gallery, "features of the items")
    row_of = {name: row for row, name in enumerate(gallery.ids)}
    rows = np.array([row_of[name] for name in fitted_to.ids], dtype=np.int64)
    layers = CrossFittedLayers.of(gallery, known.features, rows, weight, seed)
    queries = images.at(leave_one_out_queries(images, 0, MOST_QUERIES))
    embeddings = known.at(np.array([row_of[name] for name in queries.ids], dtype=np.int64))
    return layers.queries(queries, embeddings)
