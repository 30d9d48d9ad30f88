"""The protocols of galleries: `Gallery` for search, `Writable` for changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypedDict

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import (
    GalleryUnavailable,
    ItemNotFound,
    KeyReused,
    LogDamaged,
    QuotaExceeded,
    WriteError,
)
from model_store.gallery.filters.selection import Allowed
from model_store.gallery.index.plan import IndexSettings
from model_store.messages import Plan
from model_store.records import Facet
from model_store.sphere import unit_direction

from .filters.grammar import Filter


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
class GalleryContent:
    """A gallery to be written.

    Attributes
    ----------
    directory : directory for the files, or for the description of a gallery in a database.
    shape : number of items, and D.
    parts : function that returns the parts of the gallery; it can be called several times.
    owner : name of the gallery, and the directory for which it is built. Galleries with different
        owners never share a place in a database.
    """

    directory: Path
    shape: tuple[int, int]
    parts: Callable[[], Iterable[Part]]
    encoder_fingerprint: str
    settings: IndexSettings
    owner: str


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


def find_row(gallery: Gallery, item_id: str) -> int | None:
    """Return the row of an item; None if the gallery has no such item."""
    try:
        return gallery.row(item_id)
    except ItemNotFound:
        return None


NO_NOTE: Mapping[str, Any] = MappingProxyType({})
"""The empty note; see `Receipt`."""


@dataclass(frozen=True, slots=True)
class Vector:
    """An item's embedding, before normalisation.

    Attributes
    ----------
    mean, variance : (D,) float32.
    features : (F,) float32, kept so that the item can be a calibration query; None if unknown.
    """

    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    features: NDArray[np.float32] | None = None


def stored_vector(
    mean: NDArray[np.float32], variance: NDArray[np.float32]
) -> tuple[NDArray[np.float32], float, float]:
    """Return unit direction (D,), norm, and Σ_d v_d / ‖m‖² of a mean and a variance (D,)."""
    norms = np.linalg.norm(mean[None], axis=1)  # as a batch, for the same rounding
    total_variance = (variance[None].sum(-1) / norms**2)[0]
    return unit_direction(mean[None])[0], float(norms[0]), float(total_variance)


@dataclass(frozen=True, slots=True)
class Upsert:
    """An item to insert; it replaces an item with the same id."""

    item: NewItem
    vector: Vector

    @property
    def id(self) -> str:
        """The id of the item."""
        return self.item.id


@dataclass(frozen=True, slots=True)
class Delete:
    """An item to delete."""

    id: str


class ItemFields(TypedDict, total=False):
    """The fields of an item that a client can edit; a missing field does not change."""

    label: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Edit:
    """New label or metadata of an item; its picture and embedding do not change."""

    id: str
    fields: ItemFields

    def applied_to(self, before: Upsert) -> Upsert:
        """Return a write of the complete item after the edit."""
        item, fields = before.item, self.fields
        label = fields.get("label", item.label)
        metadata = fields.get("metadata", item.metadata)
        return replace(before, item=replace(item, label=label, metadata=metadata))


Write = Upsert | Delete | Edit


@dataclass(frozen=True, slots=True)
class Change:
    """The part of a log entry that a search needs; ``vector`` is None for a deletion."""

    sequence: int
    id: str
    label: str | None
    vector: Vector | None


@dataclass(frozen=True, slots=True)
class Retry:
    """The identity of a request that can be sent again.

    Attributes
    ----------
    key : unique key of the request, chosen by the client.
    request : digest of the request's content. A request with a known key and another digest is
        refused.
    """

    key: str
    request: str

    def require_same(self, request: str) -> None:
        """Raise `KeyReused` if the key was stored with another ``request``."""
        if request != self.request:
            raise KeyReused(
                "The Idempotency-Key was sent before with another request. Send a new key with a "
                "new request; repeat a key only with the identical request."
            )


@dataclass(frozen=True, slots=True)
class Written:
    """The result of one write.

    Attributes
    ----------
    id : id of the item.
    existed : whether an item with this id existed before.
    version : version of the gallery after the write.
    """

    id: str
    existed: bool
    version: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of a completed request, stored with its `Retry`.

    Attributes
    ----------
    written : result of each write, in order.
    note : JSON object from the caller; a repeated request returns it with the receipt.
    """

    written: tuple[Written, ...]
    note: Mapping[str, Any]

    def to_json(self) -> str:
        """Return the receipt as text for storage."""
        written = [asdict(one) for one in self.written]
        return json.dumps({"written": written, "note": dict(self.note)})

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        return cls(tuple(Written(**one) for one in fields["written"]), fields["note"])


class Writable(Protocol):
    """A gallery that accepts changes.

    Laws: a change is atomic, also across a crash. After `commit` returns, every search of this
    process finds the change. Requests with the same `Retry` are carried out only once.
    """

    def snapshot(self, version: int | None = None) -> Gallery:
        """Return the current snapshot, or the snapshot of an earlier ``version`` if it is kept."""

    def refresh(self) -> Gallery:
        """Read the changes of other processes; return the current snapshot."""

    def mark(self) -> tuple[int, int] | None:
        """A token that changes with every commit; see `ChangesFile.mark`."""

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return a request's receipt; None if the request is new. May raise `KeyReused`."""

    def commit(
        self,
        writes: Sequence[Write],
        retry: Retry | None = None,
        note: Mapping[str, Any] = NO_NOTE,
        most_items: int | None = None,
    ) -> Receipt:
        """Make all changes or none. When it returns, all changes are on the disk and searchable.

        Parameters
        ----------
        retry : identity of the request. If a request with this identity is already stored, the
            writes are not repeated.
        note : see `Receipt`.
        most_items : see `plan_writes`.

        Returns
        -------
        The new receipt, or the stored receipt of a repeated request.

        Raises
        ------
        ItemNotFound : an item to delete or edit does not exist.
        QuotaExceeded : the gallery would exceed ``most_items``; nothing was changed.
        WriteError : nothing was changed; the message has the reason.
        GalleryUnavailable : the change is stored but not yet searchable, or it is unknown whether
            the change is stored.
        """

    def close(self) -> None:
        """Close files and connections."""


def item_not_found(item_id: str) -> ItemNotFound:
    """Return the error for an id that no item has."""
    return ItemNotFound(f"The gallery has no item with the id {item_id!r}.")


def plan_writes(
    writes: Sequence[Write],
    there: Container[str],
    whole: Callable[[str], Upsert],
    n_items: int,
    version: int,
    note: Mapping[str, Any] = NO_NOTE,
    most_items: int | None = None,
) -> tuple[list[Upsert | Delete], Receipt]:
    """Return the writes to store, and the receipt of the request; the gallery is not changed.

    Each edit becomes a write of the complete item. Call this in the transaction of the writes,
    because another process may replace an item.

    Parameters
    ----------
    there : ids of the items in the gallery; it may have only the ids of ``writes``.
    whole : function that returns the current item with its embedding and pictures; raises
        `ItemNotFound`.
    n_items : number of items in the gallery before the writes.
    version : version of the gallery before the writes.
    note : see `Receipt`.
    most_items : maximum number of items after the writes; None for no limit. Writes that do not
        increase the number of items are always allowed.

    Raises
    ------
    ItemNotFound : an item to delete or edit does not exist.
    QuotaExceeded : the gallery would exceed ``most_items``.
    """
    latest: dict[str, Upsert | Delete] = {}
    stored: list[Upsert | Delete] = []
    written: list[Written] = []
    n_before = n_items
    for write in writes:
        before = latest.get(write.id)
        existed = write.id in there if before is None else isinstance(before, Upsert)
        if isinstance(write, Delete | Edit) and not existed:
            raise item_not_found(write.id)
        if isinstance(write, Edit):
            known = before if isinstance(before, Upsert) else whole(write.id)
            write = write.applied_to(known)  # noqa: PLW2901
        n_items += isinstance(write, Upsert) - existed
        latest[write.id] = write
        stored.append(write)
        written.append(Written(write.id, existed, version + len(stored)))
    if most_items is not None and n_items > max(most_items, n_before):
        raise QuotaExceeded(
            f"The key may keep {most_items:,} items in a gallery; this request would make "
            f"{n_items:,}. Nothing was changed. Delete some items, or ask the operator of the "
            "service for a higher limit."
        )
    return stored, Receipt(tuple(written), note)


@contextmanager
def once_kept() -> Iterator[None]:
    """Convert errors that follow a stored change; `WriteError` would wrongly report it as lost.

    Raises
    ------
    GalleryUnavailable : the change is stored, but searches possibly do not find it yet.
    LogDamaged : the stored change may be lost.
    """
    try:
        yield
    except LogDamaged:
        raise
    except (WriteError, GalleryUnavailable) as error:
        raise GalleryUnavailable(
            "The change is kept, but searches do not find it until the gallery answers again. To "
            "check, send the request again, with the same Idempotency-Key if you sent one."
        ) from error
