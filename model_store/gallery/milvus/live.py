"""A gallery in Milvus with atomic changes; Milvus itself has no transactions.

A change and its receipt are first written to a log (`MilvusLog`). Then the change is written to
Milvus. Then the head of the log advances, and all readers find the change. After a crash or an
outage, the next process that opens, reads or changes the gallery writes the outstanding changes to
Milvus. A change can be written twice without harm, because a row always gets the same content. So
every logged change is completed, and a repeated request gets its receipt.

All writers share one log. On one machine, the log is a file beside the bundle; for several
machines, it is in a database. The collection stores the name of its log. A service with another log
refuses the collection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from model_store.errors import (
    BundleMismatch,
    ChangeUnconfirmed,
    DatasetError,
    GalleryUnavailable,
    ItemNotFound,
    QuotaExceeded,
    WriteError,
    WriteRefused,
)
from model_store.gallery.milvus.collection import EVENTUALLY, LOG, NOW
from model_store.gallery.milvus.databases import Database, PostgresDatabase, SqliteDatabase
from model_store.gallery.milvus.entities import write_entity
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.milvus.log import (
    GRACE_S,
    REMEMBERED_S,
    SCHEMA,
    CollectionState,
    Head,
    MilvusLog,
    Turn,
)
from model_store.gallery.protocol import (
    NO_NOTE,
    Delete,
    Edit,
    Receipt,
    Retry,
    Upsert,
    Write,
    once_kept,
    plan_writes,
)


class MilvusLive:
    """A gallery in Milvus and the log of its changes; implements `Writable`.

    Parameters
    ----------
    admit : function that each transaction calls before its first write. It raises an error if the
        gallery no longer accepts writes.

    Raises
    ------
    BundleMismatch : the collection's changes are in another log.
    GalleryUnavailable : Milvus or the log's database does not answer; every method can raise it.
    """

    def __init__(
        self, gallery: MilvusGallery, log: MilvusLog, admit: Callable[[], None] = lambda: None
    ) -> None:
        self._gallery, self._log, self._admit = gallery, log, admit
        self._lock = threading.Lock()
        self._hidden: dict[int, int] = {}
        self._forgotten = 0
        self._next_sweep = time.monotonic() + GRACE_S
        n_built = gallery.described.n_items
        self._snapshot = gallery.at(Head(0, EVENTUALLY, n_built, 0, self._hidden))
        self._known_log = ""
        self.refresh()

    def snapshot(self, version: int | None = None) -> MilvusGallery:
        """Return the current snapshot, or the snapshot after an earlier change.

        Milvus deletes replaced and deleted items after `GRACE_S`, so an earlier snapshot may lack
        such items. In an earlier snapshot, ``n_items`` may be too large.
        """
        now = self._snapshot
        if version is None or version >= now.version:
            return now
        since = sum(change > version for change in list(self._hidden.values()))
        return now.at(replace(now.head, version=version, n_items=now.n_items + since))

    def refresh(self) -> MilvusGallery:
        """Read the changes of other services, and write outstanding changes to Milvus."""
        state = self._state()
        if state is not None and state.last > state.version:
            with suppress(WriteError, ChangeUnconfirmed):  # another writer is active
                self._tell(wait=False)
            state = self._state()
        if state is None:
            return self._snapshot
        with self._lock:
            known = self._snapshot
            if state.version > known.version:
                self._hidden.update(self._log.replaced(known.version, state.version))
                self._snapshot = self._gallery.at(
                    Head(
                        state.version,
                        state.since,
                        state.n_items_told,
                        state.n_changed_told,
                        self._hidden,
                    )
                )
            if state.forgotten > self._forgotten:
                self._forgotten = state.forgotten
                rows = [row for row, change in self._hidden.items() if change <= state.forgotten]
                for row in rows:
                    del self._hidden[row]
            now = self._snapshot
        self._sweep_at_times()
        return now

    def mark(self) -> tuple[int, int] | None:
        """See `Database.mark`. The log also has the changes of other services."""
        return self._log.mark()

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return a request's receipt; None if the request is new. May raise `KeyReused`."""
        before = self._log.receipt(retry)
        if before is not None:
            with once_kept():
                self._tell()  # the change of the receipt must be visible
                self.refresh()
        return before

    def commit(
        self,
        writes: Sequence[Write],
        retry: Retry | None = None,
        note: Mapping[str, Any] = NO_NOTE,
        most_items: int | None = None,
    ) -> Receipt:
        """Make changes, all of them or none; see `Writable`.

        Raises
        ------
        GalleryUnavailable : Milvus does not answer or refuses the write. The change may become
            visible later; the same request can be sent again.
        """
        if self._state() is None:
            self._log.claim(self._named, self._name)
        self._tell()
        try:
            receipt = self._log_changes(writes, retry, note, most_items)
        except (ItemNotFound, QuotaExceeded, WriteRefused):
            self._tell()  # an outstanding change may be the reason: make it visible
            raise
        with once_kept():
            self._tell()
            self.refresh()
        return receipt

    def _log_changes(
        self,
        writes: Sequence[Write],
        retry: Retry | None,
        note: Mapping[str, Any],
        most_items: int | None,
    ) -> Receipt:
        """Log changes and return their receipt; a repeated request gets its first receipt."""
        with self._log.turn() as turn:
            self._admit()
            before = None if retry is None else turn.receipt(retry)
            if before is not None:
                return before
            rows = self._rows(turn, [write.id for write in writes])
            there = {item_id: row for item_id, row in rows.items() if row is not None}
            n_items, last = turn.state.n_items, turn.state.last
            if any(isinstance(write, Edit) for write in writes):
                self._deliver(turn)  # an item is read from Milvus before its edit
            stored, receipt = plan_writes(
                writes,
                there,
                lambda item_id: self._gallery.upsert(there[item_id]),
                n_items,
                last,
                note,
                most_items,
            )
            for write in stored:
                _require_taken(write)
            turn.add(stored, rows)
            if retry is not None:
                turn.remember(retry, receipt)
            return receipt

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def _state(self) -> CollectionState | None:
        """Return the state of the log; None before the first change.

        Raises
        ------
        BundleMismatch : the collection names another log.
        """
        state = self._log.read_state()
        if state is None or state.log != self._known_log:
            named = self._named()
            if named is None and (state is None or state.last == 0):
                return None
            if state is None or named != state.log:
                raise BundleMismatch(
                    f"The changes of the collection {self._gallery.collection.name!r} are in "
                    "another log, so the current items are unknown. Set VOUCH_MILVUS_LOG to the "
                    "database of the other services, or serve the same directory of bundles. If "
                    "the log is lost, restore it from a backup, or index the gallery again."
                )
            self._known_log = named
        return state

    def _named(self) -> str | None:
        """Return the name of the collection's log. If there are several names, they are joined."""
        marks = self._gallery.collection.marks()
        logs = [mark.removeprefix(LOG) for mark in sorted(marks) if mark.startswith(LOG)]
        return " and ".join(logs) or None

    def _name(self, log: str) -> None:
        collection = self._gallery.collection
        collection.mark(LOG + log)
        if self._named() != log:
            collection.unmark(LOG + log)
            raise GalleryUnavailable(
                "Two services have tried to create the log of the gallery at the same time, and "
                "both have failed. Send the request again."
            )

    def _rows(self, turn: Turn, item_ids: Sequence[str]) -> dict[str, int | None]:
        """Return item id → current row (None for a deleted item); new items are left out."""
        rows = turn.rows(item_ids)
        others = [item_id for item_id in dict.fromkeys(item_ids) if item_id not in rows]
        return {**rows, **self._gallery.by_number.as_built(others)}

    def _tell(self, *, wait: bool = True) -> None:
        """Write the outstanding changes to Milvus."""
        state = self._state()
        if state is None or state.last == state.version:
            return
        with self._log.turn(wait=wait) as turn:
            self._deliver(turn)

    def _deliver(self, turn: Turn) -> None:
        """Write outstanding changes to Milvus, and make them visible to readers."""
        if turn.state.last == turn.state.version:
            return
        upserts = turn.pending()
        since = self._gallery.put(upserts) if upserts else turn.state.since
        turn.told(max(since, turn.state.since) if since != NOW else NOW)

    def _sweep_at_times(self) -> None:
        """Every `GRACE_S`, delete from Milvus the rows that were replaced at least `GRACE_S` ago.

        If another writer is active, no rows are deleted.
        """
        if not self._hidden or time.monotonic() < self._next_sweep:
            return
        self._next_sweep = time.monotonic() + GRACE_S
        with suppress(WriteError, GalleryUnavailable), self._log.turn(wait=False) as turn:
            unswept = turn.unswept(GRACE_S)
            if unswept:
                self._gallery.by_number.drop(list(unswept.values()))
                turn.swept(list(unswept))
            old = turn.old(REMEMBERED_S)
            if old:
                # Delete the rows again: a delayed write request may have restored one.
                self._gallery.by_number.drop([row for row in old.values() if row is not None])
                turn.forget(max(old))


def open_milvus(gallery: MilvusGallery, folder: Path, admit: Callable[[], None]) -> MilvusLive:
    """Open a gallery in Milvus for changes, with a log in ``folder`` or in a database.

    Raises
    ------
    BundleMismatch, StorageFailed, GalleryUnavailable : see `MilvusLive`.
    ConfigError : psycopg is not installed.
    """
    name, access = gallery.described.collection, gallery.access
    database: Database = (
        SqliteDatabase(folder / f"{name}.sqlite", SCHEMA)
        if access.log is None
        else PostgresDatabase(access.log, name, SCHEMA, access.timeout_s)
    )
    return MilvusLive(gallery, MilvusLog(database, name, gallery.described.n_items), admit)


def _require_taken(write: Upsert | Delete) -> None:
    """Raise an error for an item that exceeds a limit of Milvus."""
    if isinstance(write, Delete):
        return
    try:
        write_entity(0, write.item, write.vector.mean, write.vector.variance)
    except DatasetError as error:
        raise WriteRefused(str(error)) from error
