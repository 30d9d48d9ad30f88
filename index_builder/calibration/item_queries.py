"""Uses the items of a gallery as calibration queries, so that no image has to be held out.

Each item is a query, with which the rest of the gallery is searched. If the encoder's last layer
was fitted to an item, the similarities of this item are too high. So each item is embedded by a
layer that was fitted without the item. If the item is used as an absent query, the layer was fitted
without all items of its label. See `index_builder.whitening`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.leave_one_out import (
    group_keys,
    group_numbers,
    leave_one_out_queries,
)
from index_builder.datasets import LabelledImages
from index_builder.progress import track
from index_builder.vectors.encoder import embed_with_features
from index_builder.whitening import cross_fitted_whitenings
from model_store.encoder.contract import Embeddings, Encoder
from model_store.errors import ItemNotFound
from model_store.gallery import Gallery

MOST_QUERIES = 2_000
"""Maximum number of items that become queries. More queries hardly improve the calibration."""

N_FOLDS = 20
"""Number of cross-fitted layers. Each layer is fitted without a twentieth of the labels. For each
other label, the layer is fitted without a twentieth of the label's items. On 38 labels with 15
photographs each, similarities of items were within 0.005 of the similarities of new photographs.
With ten layers, similarities of items were 0.02 to 0.03 too high."""

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
    """

    weights: tuple[NDArray[np.float32], ...]
    fold_of_item: dict[str, int]
    fold_of_label: dict[str, int]

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
        )

    def without_item(self, ids: Sequence[str], embeddings: Embeddings) -> Embeddings:
        """Embed B items; the layer of each item was fitted without this item."""
        return self._embedded([self.fold_of_item[name] for name in ids], embeddings)

    def without_label(self, labels: Sequence[str], embeddings: Embeddings) -> Embeddings:
        """Embed B items; the layer of each item was fitted without the item's label."""
        return self._embedded([self.fold_of_label[name] for name in labels], embeddings)

    def _embedded(self, folds: Sequence[int], embeddings: Embeddings) -> Embeddings:
        mean = np.empty_like(embeddings.mean)
        for fold in set(folds):
            rows = np.flatnonzero(np.array(folds) == fold)
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
class ItemQueries:
    """B items that are used as queries.

    Attributes
    ----------
    images : ids, labels and groups of the items.
    alone : embedding of each item from an encoder fitted without this item.
    unlabelled : embedding of each item from an encoder fitted without the item's label.
    """

    images: LabelledImages
    alone: Embeddings
    unlabelled: Embeddings

    def own_rows(self, gallery: Gallery, others: LabelledImages) -> Integers:
        """Return the rows (B, m) of each item's group, including the item, padded with −1.

        Parameters
        ----------
        others : gallery images that are not queries. An image of ``others`` can belong to the group
            of a query.
        """
        rows: dict[str, set[int]] = {}
        keys = group_keys(self.images)
        for images, names in ((self.images, keys), (others, group_keys(others))):
            for name, key in zip(images.ids, names, strict=True):
                try:
                    rows.setdefault(key, set()).add(gallery.row(name))
                except ItemNotFound:
                    rows.setdefault(key, set())
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
    return ItemQueries(
        queries,
        layers.without_item(queries.ids, embeddings),
        layers.without_label(queries.labels, embeddings),
    )
