"""The log of changes of a gallery in Milvus. The log determines which rows are current.

A turn is a write transaction of the log; only one writer at a time has a turn. In a turn, each
change gets a number and a new row in the collection. The content of a row never changes. The log
stores the head: the number of the last change that is in Milvus (`Head.version`). A reader first
reads the head. The reader then ignores two kinds of rows: rows that were written by a change after
the head, and rows that were replaced by a change up to the head. So all readers find a complete
change at the same moment. A writer's turn can end while a request is delayed. The delayed request
is harmless, because it can only write the same row again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_store.errors import LogDamaged
from model_store.gallery.filters.sql import metadata_json
from model_store.gallery.milvus.collection import EVENTUALLY
from model_store.gallery.milvus.databases import Database, Execute
from model_store.gallery.protocol import Delete, NewItem, Receipt, Retry, Thumbnail, Upsert, Vector

GRACE_S = 30.0
"""Seconds for which a replaced row stays in Milvus, so that running searches can read it."""

REMEMBERED_S = 3600.0
"""After a replaced row is deleted from Milvus, readers ignore the row for this number of seconds. A
delayed write request may restore the row, so the row is deleted again after this time."""

OUTCOME_LIFE_S = 24 * 3600.0
"""Seconds for which the outcome of a request with an Idempotency-Key is kept."""

SWEPT_AT_ONCE = 1_000
"""Maximum number of replaced rows that one turn deletes from Milvus."""

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS vouch_collections (
  collection TEXT PRIMARY KEY,
  log TEXT NOT NULL,
  last BIGINT NOT NULL,
  version BIGINT NOT NULL,
  since BIGINT NOT NULL,
  n_items BIGINT NOT NULL,
  n_changed BIGINT NOT NULL,
  forgotten BIGINT NOT NULL
)""",
    # Ids are JSON, because PostgreSQL text cannot contain a null character. `place` is the row in
    # Milvus. `replaced` is the row that the change replaced. `swept` is 1 after that row was
    # deleted from Milvus. If `replaced` is null, `swept` is 1 for an item that was deleted before,
    # and 0 for a new item.
    """CREATE TABLE IF NOT EXISTS vouch_changes (
  collection TEXT NOT NULL,
  sequence BIGINT NOT NULL,
  id TEXT NOT NULL,
  place BIGINT,
  replaced BIGINT,
  content TEXT,
  at DOUBLE PRECISION NOT NULL,
  swept INTEGER NOT NULL,
  PRIMARY KEY (collection, sequence)
)""",
    """CREATE TABLE IF NOT EXISTS vouch_items (
  collection TEXT NOT NULL,
  id TEXT NOT NULL,
  place BIGINT,
  PRIMARY KEY (collection, id)
)""",
    """CREATE TABLE IF NOT EXISTS vouch_outcomes (
  collection TEXT NOT NULL,
  key TEXT NOT NULL,
  request TEXT NOT NULL,
  outcome TEXT NOT NULL,
  at DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (collection, key)
)""",
)


@dataclass(frozen=True, slots=True)
class Head:
    """The state of a gallery after a change; a search uses one head.

    Attributes
    ----------
    version : number of the last change that Milvus has.
    since : Milvus timestamp; a read at this time or later finds all changes up to ``version``.
    n_items, n_changed : see `Gallery`.
    hidden : row → number of the change that replaced or deleted the row's item. All heads share
        this mapping; a head ignores changes after its ``version``.
    """

    version: int
    since: int
    n_items: int
    n_changed: int
    hidden: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CollectionState:
    """The entry of a collection in the log; see `Head`.

    Attributes
    ----------
    log : name of the log.
    last : number of the last logged change; changes after ``version`` are not yet in Milvus.
    n_items, n_changed : the counts in `Gallery` after the change ``last``; writers use them.
    n_items_told, n_changed_told : the same counts after the change ``version``; readers use them.
    forgotten : number of the last change that the log has deleted.
    """

    log: str
    last: int
    version: int
    since: int
    n_items: int
    n_changed: int
    forgotten: int
    n_items_told: int
    n_changed_told: int


class _Entries:
    """The entries of one collection in a log.

    Parameters
    ----------
    execute : executes the statements, alone or in a transaction.
    collection : name of the collection.
    n_built : number of items that the collection was built with.
    """

    def __init__(self, execute: Execute, collection: str, n_built: int) -> None:
        self._execute, self._collection, self._n_built = execute, collection, n_built

    def read_state(self) -> CollectionState | None:
        """Read the state of the log in one query; None before the first change.

        Earlier releases store only the counts after the change ``last``. So this function computes
        the counts after ``version``: it subtracts the effect of the later changes. A change
        increases the number of changed items in two cases: the change replaces a row of the build,
        or it adds an item with a new id.
        """
        query = (
            "SELECT log, last, version, since, n_items, n_changed, forgotten, "
            "n_items - COUNT(place) + COUNT(replaced), n_changed - "
            "COUNT(CASE WHEN replaced < ? OR (replaced IS NULL AND swept = 0) THEN 1 END) "
            "FROM vouch_collections AS head LEFT JOIN vouch_changes AS change "
            "ON change.collection = head.collection AND sequence > version "
            "WHERE head.collection = ? GROUP BY head.collection"
        )
        for row in self._execute(query, [self._n_built, self._collection]):
            return CollectionState(*row)
        return None

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return a request's receipt; None if the request is new. May raise `KeyReused`."""
        query = "SELECT request, outcome FROM vouch_outcomes WHERE collection = ? AND key = ?"
        for request, outcome in self._execute(query, [self._collection, retry.key]):
            retry.require_same(request)
            return Receipt.from_json(outcome)
        return None


class MilvusLog(_Entries):
    """The log of one collection; threads, processes and machines can share the log.

    Parameters
    ----------
    database : database of the log.
    collection, n_built : see `_Entries`.
    """

    def __init__(self, database: Database, collection: str, n_built: int) -> None:
        super().__init__(database.ask, collection, n_built)
        self._database = database
        self.mark, self.close = database.mark, database.close

    def replaced(self, after: int, until: int) -> dict[int, int]:
        """Return row → change, for the rows replaced by the changes ``after`` + 1 to ``until``."""
        found = self._execute(
            "SELECT replaced, sequence FROM vouch_changes WHERE collection = ? AND sequence > ? "
            "AND sequence <= ? AND replaced IS NOT NULL",
            [self._collection, after, until],
        )
        return dict(found)

    @contextmanager
    def turn(self, *, wait: bool = True) -> Iterator[Turn]:
        """Begin a turn, see `Database.turn`."""
        with self._database.turn(wait=wait) as execute:
            yield Turn(execute, self._collection, self._n_built, self._database.now)

    def claim(self, named: Callable[[], str | None], name: Callable[[str], None]) -> str:
        """Return the name of the log; store the name in the collection if the collection has none.

        Parameters
        ----------
        named : function that returns the name of the collection's log, or None.
        name : function that stores the name of a log in the collection.
        """
        with self._database.turn() as execute:
            known = _Entries(execute, self._collection, self._n_built).read_state()
            if named() is None and (known is None or known.last > 0):
                # The entries belong to a collection that was dropped and created again.
                for table in ("collections", "changes", "items", "outcomes"):
                    execute(f"DELETE FROM vouch_{table} WHERE collection = ?", [self._collection])  # noqa: S608
                execute(
                    "INSERT INTO vouch_collections VALUES (?, ?, 0, 0, ?, ?, 0, 0)",
                    [self._collection, uuid.uuid4().hex, EVENTUALLY, self._n_built],
                )
        # Use a second transaction: the collection must not name a log that the database has not
        # stored.
        with self.turn() as turn:
            if named() is None:
                name(turn.state.log)
            return turn.state.log


class Turn(_Entries):
    """A write transaction of the log; see `MilvusLog.turn`."""

    def __init__(
        self,
        execute: Execute,
        collection: str,
        n_built: int,
        now: Callable[[Execute], float],
    ) -> None:
        super().__init__(execute, collection, n_built)
        state = self.read_state()
        if state is None:
            raise LogDamaged(f"The log has lost its entry of the collection {collection!r}.")
        self.state = state
        self.now = now(execute)

    def rows(self, item_ids: Sequence[str]) -> dict[str, int | None]:
        """Return item id → current row (None for a deleted item); unchanged items are left out."""
        found: dict[str, int | None] = {}
        for item_id in item_ids:
            for (row,) in self._execute(
                "SELECT place FROM vouch_items WHERE collection = ? AND id = ?",
                [self._collection, json.dumps(item_id)],
            ):
                found[item_id] = row
        return found

    def add(self, writes: Sequence[Upsert | Delete], rows: Mapping[str, int | None]) -> None:
        """Append changes.

        Parameters
        ----------
        rows : current rows of the items; None for deleted items.
        """
        current, state = dict(rows), self.state
        n_items, n_changed, sequence = state.n_items, state.n_changed, state.last
        changed = {item_id for item_id, row in rows.items() if row is None or row >= self._n_built}
        for write in writes:
            sequence += 1
            before, row, content = current.get(write.id), None, None
            if isinstance(write, Upsert):
                row, content = self._n_built + sequence - 1, write_content(sequence, write)
            came_back = int(before is None and write.id in changed)
            values = [sequence, json.dumps(write.id), row, before, content, self.now, came_back]
            self._execute(
                "INSERT INTO vouch_changes VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [self._collection, *values],
            )
            n_items += (row is not None) - (before is not None)
            n_changed += write.id not in changed
            changed.add(write.id)
            current[write.id] = row
        for item_id in dict.fromkeys(write.id for write in writes):
            self._execute(
                "INSERT INTO vouch_items VALUES (?, ?, ?) "
                "ON CONFLICT (collection, id) DO UPDATE SET place = excluded.place",
                [self._collection, json.dumps(item_id), current[item_id]],
            )
        self._execute(
            "UPDATE vouch_collections SET last = ?, n_items = ?, n_changed = ? "
            "WHERE collection = ?",
            [sequence, n_items, n_changed, self._collection],
        )

    def remember(self, retry: Retry, receipt: Receipt) -> None:
        """Store the outcome of a request, and delete old outcomes."""
        self._execute(
            "DELETE FROM vouch_outcomes WHERE collection = ? AND at < ?",
            [self._collection, self.now - OUTCOME_LIFE_S],
        )
        self._execute(
            "INSERT INTO vouch_outcomes VALUES (?, ?, ?, ?, ?)",
            [self._collection, retry.key, retry.request, receipt.to_json(), self.now],
        )

    def pending(self) -> list[tuple[int, Upsert]]:
        """Return the rows that are not yet in Milvus, with content.

        If an item has several such rows, only its last row is returned.

        Raises
        ------
        LogDamaged : a change differs from its checksum.
        """
        found = self._execute(
            "SELECT sequence, id, place, content FROM vouch_changes "
            "WHERE collection = ? AND sequence > ? ORDER BY sequence",
            [self._collection, self.state.version],
        )
        last = {item_id: (sequence, row, text) for sequence, item_id, row, text in found}
        return [
            (row, read_content(sequence, text))
            for sequence, row, text in last.values()
            if row is not None
        ]

    def told(self, since: int) -> None:
        """Make all logged changes visible; a Milvus read at time ``since`` or later finds them."""
        self._execute(
            "UPDATE vouch_collections SET version = last, since = ? WHERE collection = ?",
            [since, self._collection],
        )
        # Until now, readers could find the replaced rows. So the grace period of these rows begins
        # now.
        self._execute(
            "UPDATE vouch_changes SET content = NULL, at = ? WHERE collection = ? AND sequence > ?",
            [self.now, self._collection, self.state.version],
        )

    def unswept(self, age_s: float) -> dict[int, int]:
        """Return change → replaced row.

        The result has the rows that were replaced at least ``age_s`` ago and are still in Milvus.
        """
        found = self._execute(
            "SELECT sequence, replaced FROM vouch_changes WHERE collection = ? AND at < ? "
            "AND sequence <= ? AND swept = 0 AND replaced IS NOT NULL ORDER BY sequence LIMIT ?",
            [self._collection, self.now - age_s, self.state.version, SWEPT_AT_ONCE],
        )
        return dict(found)

    def swept(self, sequences: Sequence[int]) -> None:
        """Record that the rows replaced by these changes were deleted from Milvus."""
        marks = ",".join("?" * len(sequences))
        self._execute(
            "UPDATE vouch_changes SET swept = 1 "  # noqa: S608
            f"WHERE collection = ? AND sequence IN ({marks})",
            [self._collection, *sequences],
        )

    def old(self, age_s: float) -> dict[int, int | None]:
        """Return the oldest changes that the log can delete, with the rows that they replaced.

        The result ends before the first change that must be kept. A change is kept if it is newer
        than ``age_s``, or if Milvus still has the row that the change replaced.
        """
        found = self._execute(
            "SELECT sequence, replaced, at, swept FROM vouch_changes "
            "WHERE collection = ? AND sequence <= ? ORDER BY sequence LIMIT ?",
            [self._collection, self.state.version, SWEPT_AT_ONCE],
        )
        old: dict[int, int | None] = {}
        for sequence, replaced, at, swept in found:
            if at > self.now - age_s or (replaced is not None and not swept):
                break
            old[sequence] = replaced
        return old

    def forget(self, until: int) -> None:
        """Delete the entries of changes up to ``until``.

        The rows that these changes replaced must already be deleted from Milvus.
        """
        self._execute(
            "DELETE FROM vouch_changes WHERE collection = ? AND sequence <= ?",
            [self._collection, until],
        )
        self._execute(
            "UPDATE vouch_collections SET forgotten = ? WHERE collection = ?",
            [until, self._collection],
        )


def write_content(sequence: int, write: Upsert) -> str:
    """Return the text of the change with the number ``sequence``."""
    item, vector = write.item, write.vector
    values: list[Any] = [
        item.id,
        item.label,
        metadata_json(item.metadata),
        item.thumbnail.media_type,
        _packed(item.thumbnail.data),
        _packed(vector.mean.astype("<f4").tobytes()),
        _packed(vector.variance.astype("<f4").tobytes()),
    ]
    text = json.dumps([sequence, *values])
    return _digest(text) + text


def read_content(sequence: int, content: str | None) -> Upsert:
    """Parse the text of `write_content`.

    Raises
    ------
    LogDamaged : the text differs from its checksum, or belongs to another change.
    """
    digest, text = (content or "")[:32], (content or "")[32:]
    if digest != _digest(text) or json.loads(text)[0] != sequence:
        raise LogDamaged(
            f"The change {sequence} in the log of the gallery is damaged. Restore the log from a "
            "backup."
        )
    _, item_id, label, metadata, media_type, data, *numbers = json.loads(text)
    thumbnail = Thumbnail(base64.b64decode(data), media_type)
    mean, variance = (
        np.frombuffer(base64.b64decode(part), "<f4").astype(np.float32) for part in numbers
    )
    return Upsert(NewItem(item_id, label, json.loads(metadata), thumbnail), Vector(mean, variance))


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
