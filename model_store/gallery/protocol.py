"""The protocol between search and the engine that stores the gallery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.gallery.filters.facets import Facet
from model_store.gallery.filters.grammar import Filter
from model_store.gallery.index.allowed import Allowed
from model_store.verdicts import Plan


@dataclass(frozen=True, slots=True)
class Item:
    """One item of the gallery: id, label and metadata."""

    id: str
    label: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A re-encoded picture of an item."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item to be written into a gallery.

    Attributes
    ----------
    preview : a JPEG picture larger than the thumbnail; empty if there is none.
    """

    id: str
    label: str | None
    metadata: Mapping[str, Any]
    thumbnail: Thumbnail
    preview: bytes = b""


Part = tuple[Embeddings, Sequence[NewItem]]
"""Embeddings and items of one part of a gallery, in the order of the ids."""

AT_ONCE = 1_000
"""Number of items in a part; with their pictures, some megabytes."""

PREVIEWED_AT_ONCE = 100
"""Number of items in a part with previews."""


def in_parts(embeddings: Embeddings, items: Sequence[NewItem]) -> Iterator[Part]:
    """Yield items and their embeddings in the order of the ids, part by part.

    Raises
    ------
    ValueError : lengths differ or ids repeat.
    """
    if len(items) != len(embeddings):
        raise ValueError(f"{len(items)} items and {len(embeddings)} embeddings; must be equal")
    if len({item.id for item in items}) != len(items):
        raise ValueError("item ids repeat; each item needs a unique id")
    order = sorted(range(len(items)), key=lambda row: items[row].id)
    nothing = embeddings.features[:0]
    for start in range(0, len(order), AT_ONCE):
        rows = order[start : start + AT_ONCE]
        part = Embeddings(embeddings.mean[rows], embeddings.variance[rows], nothing)
        yield part, [items[row] for row in rows]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The n items nearest to each of B query directions.

    Attributes
    ----------
    rows : (B, n) int64, positions in the gallery.
    similarities : (B, n) float64, inner products of unit vectors, rounded to `SIMILARITY_DECIMALS`.
        Descending; equal similarities are ordered by id.
    plan : how allowed rows were found; meaningless without a filter.
    """

    rows: NDArray[np.int64]
    similarities: NDArray[np.float64]
    plan: Plan


SIMILARITY_DECIMALS = 8
"""Similarities are computed in float64 and rounded to this many decimals before ordering. Smaller
differences come from the encoder's float32, and would change the order of equal images between
queries."""


class Gallery(Protocol):
    """Unit directions under the inner product, with their variances and items.

    Laws: `candidates` are ordered by similarity, equal ones by id. A query gives the same
    candidates in any batch. An object of this class never changes, even if the gallery does.

    A row is the position of a present or former item, so a live gallery can have more rows than
    items. Rows without an item are never found.
    """

    @property
    def encoder_fingerprint(self) -> str:
        """The encoder that embedded the items."""

    @property
    def index_type(self) -> str:
        """The index and its search parameters, in the engine's notation."""

    @property
    def is_local(self) -> bool:
        """True if the whole gallery is on this machine, so that no call waits for the network."""

    @property
    def n_items(self) -> int:
        """The number of items."""

    @property
    def n_rows(self) -> int:
        """N: rows are 0 to N − 1."""

    @property
    def n_changed(self) -> int:
        """The number of items added, replaced or removed since the gallery was built."""

    @property
    def dim(self) -> int:
        """D."""

    @property
    def labels(self) -> Sequence[str]:
        """The distinct labels; the code of a label is its index in this sequence.

        Labels are sorted when the gallery is built; later labels are appended.
        """

    @property
    def preview_side(self) -> int | None:
        """Longest side of the previews in pixels; None without previews."""

    def candidates(
        self, directions: NDArray[np.float32], n: int, allowed: Allowed | None = None
    ) -> Candidates:
        """Find the n items nearest to each of ``directions`` (B, D).

        ``allowed`` restricts the search to some rows. Fewer than ``n`` are returned only if fewer
        are allowed.
        """

    def matching(self, part: Filter) -> Allowed:
        """Return the rows that pass a filter, as `candidates` takes them."""

    def facets(self, most: int) -> list[Facet] | None:
        """Describe the fields indexed at the build, with at most ``most`` values each.

        The counts include all current items. None if the engine does not count values.
        """

    def directions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Unit directions of ``rows`` (...), shape (..., D)."""

    def total_variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Variance of each item relative to its squared norm, Σ_d v_d / ‖m‖², shape (...)."""

    def variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Variance of each item's embedding, relative to its squared norm: v / ‖m‖², (..., D)."""

    def label_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Codes of the rows' labels, -1 where an item has none, shape (...)."""

    def rows(self) -> NDArray[np.int64]:
        """Rows (n_items,) of all items, ascending."""

    def page(self, after: int | None, limit: int) -> NDArray[np.int64]:
        """Rows of the next ``limit`` items by id, after the row ``after``.

        None for the first page. The item at ``after`` may have been removed in between.
        """

    def items(self, rows: NDArray[np.int64]) -> list[Item]:
        """The items at ``rows`` (n,), in that order."""

    def row(self, item_id: str) -> int:
        """Return the row of an item, or raise `ItemNotFound`."""

    def item(self, item_id: str) -> Item:
        """The item of that id, or `ItemNotFound`."""

    def thumbnail(self, item_id: str) -> Thumbnail:
        """The picture of that item, or `ItemNotFound`."""

    def preview(self, item_id: str) -> bytes:
        """The larger picture of that item, JPEG, or `ItemNotFound`.

        Empty if its thumbnail is as large, or if the gallery has no previews.
        """
