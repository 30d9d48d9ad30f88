"""The writes of a live gallery, the entries of its log, and the protocol `Writable`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, TypedDict, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from model_store.errors import (
    GalleryUnavailable,
    ItemNotFound,
    KeyReused,
    LogDamaged,
    QuotaExceeded,
    WriteError,
)
from model_store.gallery.protocol import Gallery, NewItem

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


@runtime_checkable
class NumberedGallery(Protocol):
    """A gallery whose changes are numbered."""

    @property
    def version(self) -> int:
        """The number of the last change."""


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


def with_whole_items(
    writes: Sequence[Write], whole: Callable[[str], Upsert]
) -> list[Upsert | Delete]:
    """Return the writes; each edit is replaced by a write of the complete item.

    Call this in the transaction of the writes, because another process may replace an item.

    Parameters
    ----------
    whole : function that returns the current item with its embedding and pictures; raises
        `ItemNotFound`.

    Raises
    ------
    ItemNotFound : an item to edit does not exist.
    """
    stored: list[Upsert | Delete] = []
    latest: dict[str, Upsert | Delete] = {}
    for write in writes:
        if isinstance(write, Edit):
            before = latest[write.id] if write.id in latest else whole(write.id)
            if isinstance(before, Delete):
                raise item_not_found(write.id)
            write = write.applied_to(before)  # noqa: PLW2901
        latest[write.id] = write
        stored.append(write)
    return stored


def item_not_found(item_id: str) -> ItemNotFound:
    """Return the error for an id that no item has."""
    return ItemNotFound(f"The gallery has no item with the id {item_id!r}.")


def plan_writes(
    writes: Sequence[Upsert | Delete],
    there: Callable[[str], bool],
    n_items: int,
    version: int,
    most_items: int | None = None,
) -> list[Written]:
    """Return the result that each of ``writes`` would have, in order; the gallery is not changed.

    Parameters
    ----------
    there : function that returns whether the gallery has an item with a given id.
    n_items : number of items in the gallery before the writes.
    version : version of the gallery before the writes.
    most_items : maximum number of items after the writes; None for no limit. Writes that do not
        increase the number of items are always allowed.

    Raises
    ------
    ItemNotFound : an item to delete does not exist.
    QuotaExceeded : the gallery would exceed ``most_items``.
    """
    since: dict[str, bool] = {}
    outcomes, n_before = [], n_items
    for place, write in enumerate(writes, start=1):
        existed = since.get(write.id)
        if existed is None:
            existed = there(write.id)
        if isinstance(write, Delete) and not existed:
            raise item_not_found(write.id)
        since[write.id] = isinstance(write, Upsert)
        n_items += since[write.id] - existed
        outcomes.append(Written(write.id, existed, version + place))
    if most_items is not None and n_items > max(most_items, n_before):
        raise QuotaExceeded(
            f"The key may keep {most_items:,} items in a gallery; this request would make "
            f"{n_items:,}. Nothing was changed. Delete some items, or ask the operator of the "
            "service for a higher limit."
        )
    return outcomes


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
