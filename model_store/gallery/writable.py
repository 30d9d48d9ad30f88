"""The writes of a live gallery, the entries of its log, and the protocol of what applies them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.errors import (
    GalleryUnavailable,
    ItemNotFound,
    LogDamaged,
    QuotaExceeded,
    WriteError,
)
from model_store.gallery.protocol import Gallery, NewItem

NO_NOTE: Mapping[str, Any] = MappingProxyType({})
"""The note of a request without one; see `Receipt`."""


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
    """An item to insert, or to put in place of the item with its id."""

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


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the log as a search needs it; without ``vector``, a deletion."""

    sequence: int
    id: str
    label: str | None
    vector: Vector | None


@dataclass(frozen=True, slots=True)
class Retry:
    """The identity of a request that may be sent again.

    Attributes
    ----------
    key : of the request; its sender made it unique.
    request : digest of the request's content; the same key with another content is refused.
    """

    key: str
    request: str


@dataclass(frozen=True, slots=True)
class Written:
    """The result of one write.

    Attributes
    ----------
    id : of the item.
    existed : whether there was an item of that id before.
    version : of the gallery after the write.
    """

    id: str
    existed: bool
    version: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of a request that was carried out; it is kept with its `Retry`.

    Attributes
    ----------
    written : of each write, in order.
    note : JSON of the caller, returned again when the request is sent again.
    """

    written: tuple[Written, ...]
    note: Mapping[str, Any]

    def to_json(self) -> str:
        """Return the text that is kept."""
        written = [asdict(one) for one in self.written]
        return json.dumps({"written": written, "note": dict(self.note)})

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        return cls(tuple(Written(**one) for one in fields["written"]), fields["note"])


class Writable(Protocol):
    """A gallery that takes changes.

    Laws: a change is atomic, also across a crash; what `commit` has returned is
    found by every search of this process; a `Retry` is carried out once.
    """

    def snapshot(self, version: int | None = None) -> Gallery:
        """The current snapshot, or, where it is kept, that of an earlier change."""

    def refresh(self) -> Gallery:
        """Read the changes of other processes; return the current snapshot."""

    def mark(self) -> tuple[int, int] | None:
        """See `ChangesFile.mark`: whether there are unread changes, in microseconds."""

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return the receipt of a request that was carried out, else None; or raise `KeyReused`."""

    def commit(
        self,
        writes: Sequence[Upsert | Delete],
        retry: Retry | None = None,
        note: Mapping[str, Any] = NO_NOTE,
        most_items: int | None = None,
    ) -> Receipt:
        """Make changes, all of them or none; they are on the disk, and searchable, on return.

        Parameters
        ----------
        retry : a request that is known by it is not carried out again.
        note : see `Receipt`.
        most_items : see `plan_writes`; of concurrent writers one comes first.

        Returns
        -------
        The receipt of now, or of when the request was first carried out.

        Raises
        ------
        ItemNotFound : an item to delete is not there.
        QuotaExceeded : there would be more items than there may be; nothing was changed.
        WriteError : nothing was changed, for a reason that is named.
        GalleryUnavailable : the change is kept, or its outcome is unknown.
        """

    def close(self) -> None:
        """Close files and connections."""


def plan_writes(
    writes: Sequence[Upsert | Delete],
    there: Callable[[str], bool],
    n_items: int,
    version: int,
    most_items: int | None = None,
) -> list[Written]:
    """Return the results that ``writes`` will have, one after another.

    Parameters
    ----------
    there : whether the gallery has an item of an id.
    n_items, version : of the gallery.
    most_items : that it may hold afterwards, unless it grows no larger; None for any number.

    Raises
    ------
    ItemNotFound : an item to delete is not there.
    QuotaExceeded : there would be more items.
    """
    since: dict[str, bool] = {}
    outcomes, n_before = [], n_items
    for place, write in enumerate(writes, start=1):
        existed = since.get(write.id)
        if existed is None:
            existed = there(write.id)
        if isinstance(write, Delete) and not existed:
            raise ItemNotFound(f"The gallery has no item with the id {write.id!r}.")
        since[write.id] = isinstance(write, Upsert)
        n_items += since[write.id] - existed
        outcomes.append(Written(write.id, existed, version + place))
    if most_items is not None and n_items > max(most_items, n_before):
        raise QuotaExceeded(
            f"The key may keep {most_items:,} items in a gallery; with these there would be "
            f"{n_items:,}. Nothing was changed. Delete some, or ask the service's operator for "
            "more."
        )
    return outcomes


@contextmanager
def once_kept() -> Iterator[None]:
    """Convert errors after a change was stored: a `WriteError` would report it as not stored.

    Raises
    ------
    GalleryUnavailable : searches may not find the change yet.
    LogDamaged : what was kept may be lost.
    """
    try:
        yield
    except LogDamaged:
        raise
    except (WriteError, GalleryUnavailable) as error:
        raise GalleryUnavailable(
            "The change is kept, but could not be shown to searches yet: they find it as soon as "
            "the gallery answers again. Send the request again, with the same Idempotency-Key if "
            "it had one, to learn when they do."
        ) from error
