"""Answered queries, kept as numbers for as long as their owner chooses; never as images."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from model_store.half_precision import HalfRows

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answered (
  gallery TEXT NOT NULL,
  encoder TEXT NOT NULL,
  query_id TEXT NOT NULL,
  answered_at REAL NOT NULL,
  mean BLOB NOT NULL,
  variance BLOB NOT NULL,
  features BLOB NOT NULL,
  PRIMARY KEY (gallery, encoder, query_id)
) WITHOUT ROWID
"""
_BY_TIME = "CREATE INDEX IF NOT EXISTS answered_by_time ON answered (answered_at)"


@dataclass(frozen=True, slots=True)
class AnsweredQuery:
    """The embedding of a query.

    Attributes
    ----------
    query_id : of the answer.
    mean, variance, features : each a row of `HalfRows`.
    """

    query_id: str
    mean: bytes
    variance: bytes
    features: bytes

    def rows(self) -> tuple[HalfRows, HalfRows, HalfRows]:
        """Return mean, variance and features, of one row each."""
        mean, variance, features = (
            HalfRows.from_bytes([part]) for part in (self.mean, self.variance, self.features)
        )
        return mean, variance, features


class AnsweredQueries:
    """Queries of all galleries, in the feedback's file; safe to share by processes.

    Parameters
    ----------
    path : of the file.
    retention_s : seconds after which a query is forgotten.
    """

    def __init__(self, path: Path, retention_s: float) -> None:
        self._path, self._retention_s = path, retention_s

    def add(self, gallery: str, encoder: str, queries: Sequence[AnsweredQuery]) -> None:
        """Keep queries that were answered now, and forget those whose time is over.

        Parameters
        ----------
        gallery : name of the gallery.
        encoder : fingerprint of the encoder.
        """
        now = time.time()
        rows = [
            (gallery, encoder, one.query_id, now, one.mean, one.variance, one.features)
            for one in queries
        ]
        with self._opened() as connection:
            statement = "INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?, ?, ?, ?)"
            connection.executemany(statement, rows)
            connection.execute(
                "DELETE FROM answered WHERE answered_at < ?", (now - self._retention_s,)
            )

    def find(self, gallery: str, encoder: str, query_id: str) -> AnsweredQuery | None:
        """Return a query that is kept; None where there is none."""
        if not self._path.exists():
            return None
        with self._opened() as connection:
            row = connection.execute(
                "SELECT query_id, mean, variance, features FROM answered "
                "WHERE gallery = ? AND encoder = ? AND query_id = ? AND answered_at >= ?",
                (gallery, encoder, query_id, time.time() - self._retention_s),
            ).fetchone()
        return None if row is None else AnsweredQuery(*row)

    def forget(self, gallery: str, query_id: str) -> bool:
        """Delete a query, on request; whether there was one."""
        if not self._path.exists():
            return False
        with self._opened() as connection:
            deleted = connection.execute(
                "DELETE FROM answered WHERE gallery = ? AND query_id = ?", (gallery, query_id)
            )
            return deleted.rowcount > 0

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(_SCHEMA)
            connection.execute(_BY_TIME)
            yield connection
