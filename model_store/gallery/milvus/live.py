"""A gallery in Milvus with atomic changes, although Milvus has no transactions.

A change is written to a log first (`MilvusLog`), with its receipt; then it is written to Milvus;
then the head of the log moves, and from that moment every reader finds it. Changes that a crash or
an outage kept from Milvus are written when the gallery is next opened, read or written to, and
telling it twice does no harm: a row is written with the same content each time. So a change that
was begun is there whole in the end, and a request that is sent again is known again.

Those who write have the log in common: a file beside the bundle for the processes of one machine, a
database for several. The collection names its log, and no service reads or writes it with another
log.
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
from model_store.gallery.milvus.collection import EVENTUALLY, NOW
from model_store.gallery.milvus.databases import Database, PostgresDatabase, SqliteDatabase
from model_store.gallery.milvus.entities import write_entity
from model_store.gallery.milvus.gallery import MilvusGallery
from model_store.gallery.milvus.log import (
    GRACE_S,
    REMEMBERED_S,
    SCHEMA,
    Head,
    MilvusLog,
    State,
    Turn,
)
from model_store.gallery.writable import (
    NO_NOTE,
    Delete,
    Receipt,
    Retry,
    Upsert,
    once_kept,
    plan_writes,
)

LOG = "log_"
"""Prefix of the mark that names the log of a collection's changes."""


class MilvusLive:
    """A gallery in Milvus and the log of its changes; obeys `Writable`.

    Parameters
    ----------
    admit : called in each transaction, before anything is written; raises if the gallery no longer
        accepts writes.

    Raises
    ------
    BundleMismatch : the collection's changes are in another log.
    GalleryUnavailable : Milvus does not answer, or the database of the log; so does every method.
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
        """The current snapshot, or that of an earlier change.

        Of items that were replaced or deleted since, Milvus forgets after `GRACE_S` what they were.
        An earlier state may count more items than it had.
        """
        now = self._snapshot
        if version is None or version >= now.version:
            return now
        since = sum(change > version for change in list(self._hidden.values()))
        return now.at(replace(now.head, version=version, n_items=now.n_items + since))

    def refresh(self) -> MilvusGallery:
        """Read the changes of other services, and write to Milvus what a crash has kept from it."""
        state = self._state()
        if state is not None and state.last > state.version:
            with suppress(WriteError, ChangeUnconfirmed):  # then the writer writes it
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
        """See `Database.mark`; what others write passes through the log too."""
        return self._log.mark()

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return the receipt of a request that was carried out, else None; or raise `KeyReused`."""
        before = self._log.receipt(retry)
        if before is not None:
            with once_kept():
                self._tell()  # the answered state must be visible
                self.refresh()
        return before

    def commit(
        self,
        writes: Sequence[Upsert | Delete],
        retry: Retry | None = None,
        note: Mapping[str, Any] = NO_NOTE,
        most_items: int | None = None,
    ) -> Receipt:
        """Make changes, all of them or none; see `Writable`.

        Raises
        ------
        GalleryUnavailable : Milvus does not answer, or could not be written to. The change is made
            later, or not; the request may be sent again.
        """
        if self._state() is None:
            self._log.claim(self._named, self._name)
        self._tell()
        try:
            receipt = self._log_changes(writes, retry, note, most_items)
        except (ItemNotFound, QuotaExceeded, WriteRefused):
            self._tell()  # a refusal, too, may depend on another change: show it first
            raise
        with once_kept():
            self._tell()
            self.refresh()
        return receipt

    def _log_changes(
        self,
        writes: Sequence[Upsert | Delete],
        retry: Retry | None,
        note: Mapping[str, Any],
        most_items: int | None,
    ) -> Receipt:
        """Append changes to the log; the receipt of these, or of when they were first made."""
        with self._log.turn() as turn:
            self._admit()
            before = None if retry is None else turn.receipt(retry)
            if before is not None:
                return before
            rows = self._rows(turn, [write.id for write in writes])
            there = {item_id for item_id, row in rows.items() if row is not None}
            n_items, last = turn.state.n_items, turn.state.last
            written = plan_writes(writes, there.__contains__, n_items, last, most_items)
            for write in writes:
                _require_taken(write)
            receipt = Receipt(tuple(written), note)
            turn.add(writes, rows)
            if retry is not None:
                turn.remember(retry, receipt)
            return receipt

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    def _state(self) -> State | None:
        """The state of the log; None before the first change.

        Raises
        ------
        BundleMismatch : it is not the one that the collection names.
        """
        state = self._log.state()
        if state is None or state.log != self._known_log:
            named = self._named()
            if named is None and (state is None or state.last == 0):
                return None
            if state is None or named != state.log:
                raise BundleMismatch(
                    f"The changes of the collection {self._gallery.collection.name!r} are in "
                    "another log than the one here, so what is current is not known. Set "
                    "VOUCH_MILVUS_LOG to the database that the others write to, or serve the "
                    "directory of bundles that they share; where the log is lost, restore it, or "
                    "index the gallery anew."
                )
            self._known_log = named
        return state

    def _named(self) -> str | None:
        """The log that the collection names; of several that were named at once, none of them."""
        marks = self._gallery.collection.marks()
        logs = [mark.removeprefix(LOG) for mark in sorted(marks) if mark.startswith(LOG)]
        return " and ".join(logs) or None

    def _name(self, log: str) -> None:
        collection = self._gallery.collection
        collection.mark(LOG + log)
        if self._named() != log:
            collection.unmark(LOG + log)
            raise GalleryUnavailable(
                "Two logs were to keep the changes of the gallery at the same moment, and neither "
                "does. Send the request again."
            )

    def _rows(self, turn: Turn, item_ids: Sequence[str]) -> dict[str, int | None]:
        """The rows of items, None where one was deleted."""
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
        """Let Milvus have changes of the log, and readers find them."""
        if turn.state.last == turn.state.version:
            return
        upserts = turn.pending()
        since = self._gallery.put(upserts) if upserts else turn.state.since
        turn.told(max(since, turn.state.since) if since != NOW else NOW)

    def _sweep_at_times(self) -> None:
        """Delete old replaced rows from Milvus, unless another writer is active."""
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
                # Once more: a request that was on its way all the time may have brought one back.
                self._gallery.by_number.drop([row for row in old.values() if row is not None])
                turn.forget(max(old))


def open_milvus(gallery: MilvusGallery, folder: Path, admit: Callable[[], None]) -> MilvusLive:
    """A gallery in Milvus that takes changes, by a log in ``folder`` or in a database.

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
    """Refuse what Milvus would refuse, before it is in the log."""
    if isinstance(write, Delete):
        return
    try:
        write_entity(0, write.item, write.vector.mean, write.vector.variance)
    except DatasetError as error:
        raise WriteRefused(str(error)) from error
