"""Sets the length of result lists in calibration; finds items that show the same object."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from model_store.encoder.contract import Embeddings
from model_store.gallery import Gallery
from model_store.search import N_CANDIDATES

PARTS = 4
"""If labels are hidden, a result list has at most 1 / `PARTS` of the gallery's items. If a label is
hidden, its items cannot be found, and other items take their places. Without this limit, some of
these replacements would be too dissimilar for a result list of the service."""

LEAST_LISTED = 10
"""Minimum length of a result list in a small gallery."""


PlainItems = tuple[NDArray[np.int64], LabelledImages, Embeddings]
"""Three parts for n views: the row of each view among the matched queries, (n,); the item that each
view shows; and the embedding of each item."""


def items_alike(gallery: Gallery, images: LabelledImages) -> NDArray[np.int64] | None:
    """Return the object number (n_items,) of each item; None if no two items share an object.

    To make a view an absent query, all copies and near-duplicates of the original picture must be
    hidden.

    Parameters
    ----------
    images : gallery images, with groups if known.
    """
    if images.groups is None or len(set(images.groups)) == len(images):
        return None
    numbers = np.arange(gallery.n_items)
    row_of = {item.id: row for row, item in enumerate(gallery.items(numbers))}
    first: dict[str, int] = {}
    for name, group in zip(images.ids, images.groups, strict=True):
        numbers[row_of[name]] = first.setdefault(group, row_of[name])
    return numbers


def list_length(gallery: Gallery, n_hidden: int, *, hide_labels: bool) -> int:
    """Return a result list length that every query can fill, even if the query's label is hidden.

    Parameters
    ----------
    n_hidden : maximum number of items hidden from a query, apart from items of the query's label.
    """
    n_candidates = N_CANDIDATES
    if hide_labels:
        n_hidden = max(n_hidden, largest_hidden(gallery))
        n_candidates = min(n_candidates, max(gallery.n_items // PARTS, LEAST_LISTED))
    return min(n_candidates, gallery.n_items - n_hidden)


def largest_hidden(gallery: Gallery) -> int:
    """Return the largest number of items that a hidden label can have.

    If a query's label is hidden, the result list can contain only the remaining items. If a label
    with more than half of the gallery's items were hidden, too few items would remain. So queries
    of such a label do not become absent queries.
    """
    if not gallery.labels:
        return 1
    codes = gallery.label_codes(np.arange(gallery.n_items))
    counts = np.bincount(codes[codes >= 0])
    return int(counts[counts <= gallery.n_items // 2].max(initial=0))


def plain_items(
    matched: LabelledImages, images: LabelledImages, embeddings: Embeddings
) -> PlainItems:
    """Find the original gallery image of each view in ``matched``."""
    row_of = {name: row for row, name in enumerate(images.ids)}
    places = np.array([n for n, name in enumerate(matched.ids) if name in row_of], dtype=np.int64)
    rows = np.array([row_of[matched.ids[place]] for place in places], dtype=np.int64)
    return places, images.at(rows), embeddings.at(rows)
