"""The protocol between search and the engine that stores the gallery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.gallery.filters.grammar import Filter
from model_store.gallery.index.allowed import Allowed
from model_store.records import Facet
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
"""One part of a gallery: embeddings and items, sorted by id."""

AT_ONCE = 1_000
"""Number of items in a part. A part takes some megabytes, mainly for pictures."""

PREVIEWED_AT_ONCE = 100
"""Number of items in a part if the items have previews."""


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
        The largest similarity comes first; items with equal similarity are ordered by id.
    plan : how the search found the allowed rows; meaningless without a filter.
    """

    rows: NDArray[np.int64]
    similarities: NDArray[np.float64]
    plan: Plan


SIMILARITY_DECIMALS = 8
"""Decimal places of a similarity. Similarities are computed in float64 and rounded before items are
ordered. Rounding removes the errors of the encoder's float32. Without rounding, these errors would
change the order of equal images."""


class Gallery(Protocol):
    """The items that a query is compared with; similarity is the inner product of directions.

    Laws: `candidates` orders items by similarity, and items of equal similarity by id. A query gets
    the same candidates in any batch. An object of this class never changes; a changed gallery gets
    a new object.

    A row is the position of an item; a removed item keeps its row. So a live gallery can have more
    rows than items. A search never finds the row of a removed item.
    """

    @property
    def encoder_fingerprint(self) -> str:
        """The fingerprint of the encoder that embedded the items."""

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
        """N, the number of rows; rows are numbered from 0 to N − 1."""

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
    def held_labels(self) -> Sequence[str]:
        """The labels of the current items; `labels` also has labels of removed items.

        An engine returns all labels if it does not know the current labels.
        """

    @property
    def preview_side(self) -> int | None:
        """Longest side of the previews in pixels; None without previews."""

    def candidates(
        self, directions: NDArray[np.float32], n: int, allowed: Allowed | None = None
    ) -> Candidates:
        """Find the n items nearest to each of ``directions`` (B, D).

        The search finds only ``allowed`` rows; None allows all rows. The result has fewer than
        ``n`` items only if fewer rows are allowed.
        """

    def matching(self, part: Filter) -> Allowed:
        """Return the rows that pass a filter, as the argument ``allowed`` of `candidates`."""

    def facets(self, most: int) -> list[Facet] | None:
        """Describe each field that was indexed at the build, with at most ``most`` of its values.

        The counts include all current items. Returns None if the engine cannot count values.
        """

    def directions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit directions (..., D) of ``rows`` (...)."""

    def total_variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each total variance, divided by the item's squared norm: Σ_d v_d / ‖m‖², (...)."""

    def variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each variance, divided by the item's squared norm: v / ‖m‖², (..., D)."""

    def label_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the label codes of ``rows`` (...); -1 for an item without a label."""

    def rows(self) -> NDArray[np.int64]:
        """Return the rows (n_items,) of all items, ascending."""

    def page(self, after: int | None, limit: int) -> NDArray[np.int64]:
        """Return the rows of the ``limit`` items that follow ``after``, in the order of ids.

        If ``after`` is None, the first items are returned. The item at ``after`` need not exist any
        longer.
        """

    def items(self, rows: NDArray[np.int64]) -> list[Item]:
        """Return the items at ``rows`` (n,), in the order of ``rows``."""

    def row(self, item_id: str) -> int:
        """Return the row of the item with this id, or raise `ItemNotFound`."""

    def item(self, item_id: str) -> Item:
        """Return the item with this id, or raise `ItemNotFound`."""

    def thumbnail(self, item_id: str) -> Thumbnail:
        """Return the thumbnail of an item, or raise `ItemNotFound`."""

    def preview(self, item_id: str) -> bytes:
        """Return the preview of an item as JPEG, or raise `ItemNotFound`.

        Empty if the item's thumbnail is as large as a preview, or if the gallery has no previews.
        """
