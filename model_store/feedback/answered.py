"""Answered queries, stored as embeddings for a configured time, never as images.

Exact bounds need queries that were drawn with equal probability. Most draws prefer doubtful
answers. But a part of the draws has the same probability for all queries. Only this part is
evidence. Queries that reviewers chose are not used, because reviewers may prefer wrong answers.
Undecided queries may be difficult queries, so the result would be biased if many of them were left
out. So the drawn queries are sorted by age, oldest first. The evidence is as many of the oldest
queries as possible, with at most a tenth of them undecided.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from model_store.table import HalfRows

from . import cases
from .decisions import Decided, agreed, listed
from .file import opened

LATE_S = 3600.0
"""Maximum time in seconds from an answer until its query is written to the file."""


@dataclass(frozen=True, slots=True)
class AnsweredQuery:
    """The embedding of a query, and the gallery that answered it.

    Attributes
    ----------
    query_id : id of the query.
    mean, variance, features : bytes of one row each, see `HalfRows.to_bytes`.
    version : version of the gallery that answered; None if an earlier release stored the query.
    noted_at : time of the answer, seconds since 1970. The query is written to the file later.
    """

    query_id: str
    mean: bytes
    variance: bytes
    features: bytes
    version: int | None = field(default=None, kw_only=True)
    noted_at: float = field(default_factory=time.time, compare=False, kw_only=True)

    def rows(self) -> tuple[HalfRows, HalfRows, HalfRows]:
        """Return mean, variance and features, each with one row."""
        mean, variance, features = (
            HalfRows.from_bytes([part]) for part in (self.mean, self.variance, self.features)
        )
        return mean, variance, features


class AnsweredQueries:
    """Answered queries of all galleries in the feedback file; processes can share the file.

    Parameters
    ----------
    path : path of the feedback file.
    retention_s : seconds after which a query that is not under review is deleted.
    """

    def __init__(self, path: Path, retention_s: float) -> None:
        self._path, self._retention_s = path, retention_s

    @property
    def keeps_all(self) -> bool:
        """True if all answered queries are kept; if False, only queries under review are kept."""
        return self._retention_s > 0

    def add(self, gallery: str, encoder: str, queries: Sequence[AnsweredQuery]) -> None:
        """Store newly answered queries, and delete expired queries.

        Parameters
        ----------
        gallery : name of the gallery.
        encoder : fingerprint of the encoder.
        """
        now = time.time()
        with opened(self._path, writing=True) as connection:
            add(connection, gallery, encoder, queries, now)
            purge(connection, now - self._retention_s)

    def find(self, gallery: str, encoder: str, query_id: str) -> AnsweredQuery | None:
        """Return a stored query; None if there is none."""
        if not self._path.exists():
            return None
        with opened(self._path) as connection:
            row = connection.execute(
                "SELECT query_id, mean, variance, features, version FROM answered "  # noqa: S608
                "LEFT JOIN answered_versions USING (gallery, encoder, query_id) "
                "WHERE gallery = ? AND encoder = ? AND query_id = ? AND "
                f"(answered_at >= ? OR {_UNDER_REVIEW})",
                (gallery, encoder, query_id, time.time() - self._retention_s),
            ).fetchone()
        return None if row is None else AnsweredQuery(*row[:4], version=row[4])

    def forget(self, gallery: str, query_id: str) -> bool:
        """Delete a query on request; return whether it existed."""
        with opened(self._path, writing=True) as connection:
            return forget(connection, gallery, query_id)


_UNDER_REVIEW = (
    "EXISTS (SELECT 1 FROM cases WHERE cases.gallery = answered.gallery "
    "AND cases.query_id = answered.query_id)"
)


def add(
    connection: sqlite3.Connection,
    gallery: str,
    encoder: str,
    queries: Sequence[AnsweredQuery],
    now: float,
) -> None:
    """Store queries, except queries that a user has deleted after the answer."""
    queries = [one for one in queries if not is_forgotten(connection, gallery, one)]
    connection.executemany(
        "INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (gallery, encoder, one.query_id, now, one.mean, one.variance, one.features)
            for one in queries
        ],
    )
    connection.executemany(
        "INSERT OR REPLACE INTO answered_versions VALUES (?, ?, ?, ?)",
        [
            (gallery, encoder, one.query_id, one.version)
            for one in queries
            if one.version is not None
        ],
    )


def purge(connection: sqlite3.Connection, before: float) -> None:
    """Delete queries that were answered before a time, except queries under review."""
    connection.execute(
        f"DELETE FROM answered WHERE answered_at < ? AND NOT {_UNDER_REVIEW}",  # noqa: S608
        (before,),
    )
    _purge_forgotten(connection)


def _purge_forgotten(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM forgotten WHERE forgotten_at < ?", (time.time() - LATE_S,))


def is_forgotten(connection: sqlite3.Connection, gallery: str, query: AnsweredQuery) -> bool:
    """Return whether a deletion of the query was requested after the query was answered."""
    found = connection.execute(
        "SELECT 1 FROM forgotten WHERE gallery = ? AND query_id = ? AND forgotten_at >= ?",
        (gallery, query.query_id, query.noted_at),
    )
    return found.fetchone() is not None


def forget(connection: sqlite3.Connection, gallery: str, query_id: str) -> bool:
    """Delete the embeddings of a query from all encoders; return whether there were any.

    The deletion is recorded. So a process that has just answered the query does not store it later.
    """
    _purge_forgotten(connection)
    connection.execute(
        "INSERT OR REPLACE INTO forgotten VALUES (?, ?, ?)", (gallery, query_id, time.time())
    )
    deleted = connection.execute(
        "DELETE FROM answered WHERE gallery = ? AND query_id = ?", (gallery, query_id)
    )
    return deleted.rowcount > 0


MOST_OPEN = 0.1
"""Maximum share of undecided queries among the used queries."""


@dataclass(frozen=True, slots=True)
class DrawnQuery:
    """A query that was drawn at random.

    Attributes
    ----------
    embedded : embedding of the query.
    said : decision on which enough reviewers agree; None if too few agree.
    """

    embedded: AnsweredQuery
    said: Decided | None


def drawn_queries(path: Path, gallery: str, encoder: str) -> list[DrawnQuery]:
    """Return the oldest drawn queries: as many as possible with a small share of undecided queries.

    Parameters
    ----------
    path : path of the feedback file.
    gallery : name of the gallery in the file.
    encoder : fingerprint of the encoder that computed the embeddings.
    """
    with opened(path) as connection:
        rows = connection.execute(
            "SELECT query_id, mean, variance, features FROM cases "
            "JOIN answered USING (gallery, encoder, query_id) "
            "WHERE gallery = ? AND encoder = ?",
            (gallery, encoder),
        )
        embedded = {row[0]: AnsweredQuery(*row) for row in rows}
        drawn = []
        for case in cases.listed(connection, {"gallery": gallery, "encoder": encoder}):
            if not case.drawn_evenly or case.query_id not in embedded:
                continue
            made = listed(connection, {"gallery": gallery, "query_id": case.query_id})
            agreeing = agreed(made, case.wanted)
            said = agreeing[-1] if agreeing else None
            drawn.append(DrawnQuery(embedded[case.query_id], said))
    n_open, end = 0, 0
    for number, one in enumerate(drawn, start=1):
        n_open += one.said is None
        if one.said is not None and n_open <= MOST_OPEN * number:
            end = number
    return drawn[:end]
