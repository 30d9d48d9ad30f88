"""A gallery in PostgreSQL with atomic changes: each change is one transaction of the database.

The transaction locks the row of the table ``state``, so writers take turns. It stores the new rows,
the receipt and the number of the change together. A service of another machine finds the change
when it next reads the state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from model_store.errors import DatasetError, GalleryUnavailable, WriteRefused
from model_store.gallery.postgres.database import COLUMNS, PLACES, values_of
from model_store.gallery.postgres.gallery import PostgresGallery
from model_store.gallery.protocol import (
    NO_NOTE,
    Delete,
    NewItem,
    Receipt,
    Retry,
    Thumbnail,
    Upsert,
    Vector,
    Write,
    plan_writes,
)

KEPT_S = 600
"""Seconds for which replaced rows are kept, so that a list of items can be read page by page."""

RECEIPT_LIFE_S = 24 * 3600
"""Seconds for which the outcome of a request with an Idempotency-Key is kept."""


class PostgresLive:
    """A gallery in PostgreSQL that accepts changes; implements `Writable`.

    Parameters
    ----------
    admit : function that each transaction calls before its first write. It raises an error if the
        gallery no longer accepts writes.

    Raises
    ------
    GalleryUnavailable : PostgreSQL does not answer; every method can raise it.
    """

    def __init__(self, gallery: PostgresGallery, admit: Callable[[], None]) -> None:
        self._admit = admit
        self._lock = threading.Lock()
        self._snapshot = gallery
        self._database = gallery.database
        self._n_built = gallery.described.n_items

    def snapshot(self, version: int | None = None) -> PostgresGallery:
        """Return the current snapshot, or the snapshot after an earlier change.

        Replaced and deleted items are deleted from the database after `KEPT_S`, so an earlier
        snapshot may lack such items.
        """
        now = self._snapshot
        return now if version is None or version >= now.version else now.before(version)

    def refresh(self) -> PostgresGallery:
        """Read the changes of other services; return the current snapshot."""
        while True:
            known = self._snapshot
            renewed = known.renewed()
            with self._lock:
                if self._snapshot is known:  # else another thread has read a state
                    self._snapshot = renewed
                    return renewed

    def mark(self) -> None:
        """Return None, because PostgreSQL has no token that is cheaper than `refresh`."""

    def receipt(self, retry: Retry) -> Receipt | None:
        """Return a request's receipt; None if the request is new. May raise `KeyReused`."""
        with self._database.connection() as connection:
            receipt = _receipt(connection, retry)
        if receipt is not None:
            self.refresh()
        return receipt

    def commit(
        self,
        writes: Sequence[Write],
        retry: Retry | None = None,
        note: Mapping[str, Any] = NO_NOTE,
        most_items: int | None = None,
    ) -> Receipt:
        """Make changes, all of them or none; see `Writable`."""
        with self._database.transaction() as connection:
            [(version, n_items)] = connection.execute(
                "SELECT version, n_items FROM state FOR UPDATE"
            ).fetchall()
            self._admit()
            receipt = None if retry is None else _receipt(connection, retry)
            if receipt is None:
                rows = _current_rows(connection, [write.id for write in writes])
                whole = partial(_whole, connection, rows)
                planned = plan_writes(writes, rows, whole, n_items, version, note, most_items)
                stored, receipt = planned
                if stored:
                    self._store(connection, stored, rows, version)
                if retry is not None:
                    connection.execute(
                        "INSERT INTO receipts (key, request, outcome) VALUES (%s, %s, %s)",
                        [retry.key, retry.request, receipt.to_json()],
                    )
        try:
            self.refresh()
        except GalleryUnavailable as error:
            raise GalleryUnavailable(
                "The change is kept, but this service does not find it until PostgreSQL answers "
                "again. To check, send the request again, with the same Idempotency-Key if you "
                "sent one."
            ) from error
        return receipt

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def _store(
        self,
        connection: Any,  # noqa: ANN401 - psycopg is imported late
        writes: Sequence[Upsert | Delete],
        rows: Mapping[str, int],
        version: int,
    ) -> None:
        """Store planned writes; ``rows`` are the current rows of the items that exist."""
        last = {write.id: version + place for place, write in enumerate(writes, start=1)}
        replaced = {rows[item_id]: at for item_id, at in last.items() if item_id in rows}
        connection.execute(
            "UPDATE labels SET n_items = labels.n_items - gone.n FROM (SELECT label, count(*) AS n "
            "FROM items WHERE row = ANY(%s) AND label IS NOT NULL GROUP BY label) AS gone "
            "WHERE labels.label = gone.label",
            [list(replaced)],
        )
        connection.execute(
            "UPDATE items SET died = gone.at FROM unnest(%s::bigint[], %s::bigint[]) "
            "AS gone (row, at) WHERE items.row = gone.row",
            [list(replaced), list(replaced.values())],
        )
        # Only the last write of an item is visible after the change.
        new = [
            (at, write)
            for at, write in enumerate(writes, start=version + 1)
            if isinstance(write, Upsert) and last[write.id] == at
        ]
        items = [_values(self._n_built + at - 1, write, at) for at, write in new]
        for (_, write), values in zip(new, items, strict=True):
            if write.item.label is not None:
                connection.execute(
                    "INSERT INTO labels (code, label, n_items) "
                    "VALUES ((SELECT count(*) FROM labels), %s, 1) "
                    "ON CONFLICT (label) DO UPDATE SET n_items = labels.n_items + 1",
                    [write.item.label],
                )
            connection.execute(
                f"INSERT INTO items ({COLUMNS}) VALUES ({PLACES})",  # noqa: S608
                values,
            )
        connection.execute(
            "WITH added AS (INSERT INTO changed SELECT unnest(%s::text[]) ON CONFLICT DO NOTHING "
            "RETURNING 1) UPDATE state SET version = %s, n_items = n_items + %s, "
            "n_changed = n_changed + (SELECT count(*) FROM added)",
            [list(last), version + len(writes), len(new) - len(replaced)],
        )
        self._clean(connection, version + len(writes))

    @staticmethod
    def _clean(connection: Any, version: int) -> None:  # noqa: ANN401
        """Note the time of a change, and delete what is too old."""
        connection.execute("INSERT INTO commits (version) VALUES (%s)", [version])
        [(old,)] = connection.execute(
            "SELECT max(version) FROM commits WHERE at < now() - make_interval(secs => %s)",
            [KEPT_S],
        ).fetchall()
        if old is not None:
            connection.execute("DELETE FROM items WHERE died <= %s", [old])
            # Processes that have read the state `old` recognise it by its row in `commits`.
            connection.execute("DELETE FROM commits WHERE version < %s", [old])
        connection.execute(
            "DELETE FROM receipts WHERE at < now() - make_interval(secs => %s)", [RECEIPT_LIFE_S]
        )


def _receipt(connection: Any, retry: Retry) -> Receipt | None:  # noqa: ANN401
    for request, outcome in connection.execute(
        "SELECT request, outcome FROM receipts WHERE key = %s", [retry.key]
    ):
        retry.require_same(request)
        return Receipt.from_json(outcome)
    return None


def _current_rows(connection: Any, item_ids: Sequence[str]) -> dict[str, int]:  # noqa: ANN401
    """Return item id → current row; items that do not exist are left out."""
    ids = [item_id for item_id in item_ids if "\0" not in item_id]
    found = connection.execute(
        "SELECT id, row FROM items WHERE id = ANY(%s) AND died IS NULL", [ids]
    )
    return dict(found.fetchall())


def _whole(connection: Any, rows: Mapping[str, int], item_id: str) -> Upsert:  # noqa: ANN401
    """Return a write with the current content of an item."""
    [(label, metadata, direction, norm, variance, features, *pictures)] = connection.execute(
        "SELECT label, metadata, direction, norm, variance, features, thumbnail, media_type, "
        "preview FROM items WHERE row = %s",
        [rows[item_id]],
        binary=True,
    ).fetchall()
    thumbnail, media_type, preview = pictures
    item = NewItem(item_id, label, metadata, Thumbnail(thumbnail, media_type), preview)
    kept = None if features is None else np.frombuffer(features, "<f4").astype(np.float32)
    return Upsert(item, Vector(direction.to_numpy() * np.float32(norm), variance.to_numpy(), kept))


def _values(row: int, write: Upsert, at: int) -> list[Any]:
    """Return the values of `COLUMNS`; raise `WriteRefused` if PostgreSQL cannot store the item."""
    mean, variance = write.vector.mean, write.vector.variance
    try:
        return values_of(row, write.item, mean, variance, at, write.vector.features)
    except DatasetError as error:
        raise WriteRefused(str(error)) from error
