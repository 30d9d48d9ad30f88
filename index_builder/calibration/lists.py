"""The length of the lists of calibration queries, and the items that show the same thing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from model_store.encoder.contract import Embeddings
from model_store.gallery import Gallery
from model_store.search import N_CANDIDATES

PARTS = 4
"""A list is at most this part of the gallery, where labels are hidden: of a gallery whose label is
hidden the same number of items would reach further out than it does in service."""

LEAST_LISTED = 10
"""Items of a list that votes are counted in, however small the gallery."""


PlainItems = tuple[NDArray[np.int64], LabelledImages, Embeddings]
"""Places (n,) among matched queries, and the n items of which these queries are views."""


def items_alike(gallery: Gallery, images: LabelledImages) -> NDArray[np.int64] | None:
    """Return numbers (n_items,) that items share which show the same thing; None where none do.

    A view of a picture whose copy, or near-duplicate, stays in the gallery is no absent query.

    Parameters
    ----------
    images : of the gallery, with groups where they are known.
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
    """Return the items of every list: so many that a query whose label is hidden finds as many.

    Parameters
    ----------
    n_hidden : items that are hidden from a query for other reasons.
    """
    n_candidates = N_CANDIDATES
    if hide_labels:
        n_hidden = max(n_hidden, largest_hidden(gallery))
        n_candidates = min(n_candidates, max(gallery.n_items // PARTS, LEAST_LISTED))
    return min(n_candidates, gallery.n_items - n_hidden)


def largest_hidden(gallery: Gallery) -> int:
    """Return the size of the largest label that is at most half of the gallery.

    Lists are so much shorter than the gallery. A larger label would leave next to nothing of them:
    its queries are no stand-ins for absent ones.
    """
    if not gallery.labels:
        return 1
    codes = gallery.label_codes(np.arange(gallery.n_items))
    counts = np.bincount(codes[codes >= 0])
    return int(counts[counts <= gallery.n_items // 2].max(initial=0))


def plain_items(
    matched: LabelledImages, images: LabelledImages, embeddings: Embeddings
) -> PlainItems:
    """Return the items among ``images`` that the views ``matched`` are of."""
    row_of = {name: row for row, name in enumerate(images.ids)}
    places = np.array([n for n, name in enumerate(matched.ids) if name in row_of], dtype=np.int64)
    rows = np.array([row_of[matched.ids[place]] for place in places], dtype=np.int64)
    return places, images.subset(rows), embeddings.at(rows)
