"""The length of result lists in calibration, and the items that show the same object."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from model_store.encoder.contract import Embeddings
from model_store.gallery import Gallery
from model_store.search import N_CANDIDATES

PARTS = 4
"""If labels are hidden, a list has at most 1 / `PARTS` of the gallery. Otherwise, with fewer items
left, the same number would reach less similar items than in the service."""

LEAST_LISTED = 10
"""Minimum length of a result list in a small gallery."""


PlainItems = tuple[NDArray[np.int64], LabelledImages, Embeddings]
"""Rows (n,) of matched queries, and the n items that these queries are views of."""


def items_alike(gallery: Gallery, images: LabelledImages) -> NDArray[np.int64] | None:
    """Return numbers (n_items,), equal for items that show the same object; None if all differ.

    A view is not an absent query if a copy or near-duplicate of its picture stays in the gallery.

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
    """Return the length of every result list, such that queries with a hidden label get as many.

    Parameters
    ----------
    n_hidden : number of items hidden from a query for other reasons.
    """
    n_candidates = N_CANDIDATES
    if hide_labels:
        n_hidden = max(n_hidden, largest_hidden(gallery))
        n_candidates = min(n_candidates, max(gallery.n_items // PARTS, LEAST_LISTED))
    return min(n_candidates, gallery.n_items - n_hidden)


def largest_hidden(gallery: Gallery) -> int:
    """Return the size of the largest label with at most half of the gallery.

    The maximum length of a result list is the size of the gallery minus this number. A larger label
    would leave too few items, so its queries cannot serve as absent ones.
    """
    if not gallery.labels:
        return 1
    codes = gallery.label_codes(np.arange(gallery.n_items))
    counts = np.bincount(codes[codes >= 0])
    return int(counts[counts <= gallery.n_items // 2].max(initial=0))


def plain_items(
    matched: LabelledImages, images: LabelledImages, embeddings: Embeddings
) -> PlainItems:
    """Return the items among ``images`` that the views ``matched`` were made from."""
    row_of = {name: row for row, name in enumerate(images.ids)}
    places = np.array([n for n, name in enumerate(matched.ids) if name in row_of], dtype=np.int64)
    rows = np.array([row_of[matched.ids[place]] for place in places], dtype=np.int64)
    return places, images.subset(rows), embeddings.at(rows)
