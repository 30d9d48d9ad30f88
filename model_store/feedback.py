"""What users say of matches: kept for the next calibration, and to see how true this one is."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SCHEMA = """
CREATE TABLE IF NOT EXISTS feedback (
  gallery TEXT NOT NULL,
  bundle TEXT NOT NULL,
  query_id TEXT NOT NULL,
  item_id TEXT NOT NULL,
  correct INTEGER NOT NULL,
  rank INTEGER NOT NULL,
  match_probability REAL NOT NULL,
  received_at REAL NOT NULL,
  match_log_odds REAL,
  match_fingerprint TEXT,
  PRIMARY KEY (bundle, query_id, item_id)
) WITHOUT ROWID
"""

_ADDED = {"match_log_odds": "REAL", "match_fingerprint": "TEXT"}
"""Columns that files of earlier releases lack; what was kept there cannot be fitted to."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """One pair of a query and an item, as it was served, and whether it is a true match.

    Attributes
    ----------
    gallery, bundle : what answered.
    query_id, item_id : the pair.
    correct : what the user says.
    rank : place of the item among the candidates, from 1.
    match_probability : what was served.
    match_log_odds : what was served, before any correction by feedback.
    match_fingerprint : of what that came from, see `Calibration.match_fingerprint`.
    """

    gallery: str
    bundle: str
    query_id: str
    item_id: str
    correct: bool
    rank: int
    match_probability: float
    match_log_odds: float
    match_fingerprint: str


@dataclass(frozen=True, slots=True)
class SaidPairs:
    """What can be learned from: pairs whose uncorrected probabilities share an origin.

    Attributes
    ----------
    log_odds : (n,) uncorrected.
    correct : (n,) what users said.
    queries : (n,) whose pair each is, as numbers.
    n_others : pairs that were kept with probabilities of another origin.
    """

    log_odds: NDArray[np.float64]
    correct: NDArray[np.bool_]
    queries: NDArray[np.int64]
    n_others: int


@dataclass(frozen=True, slots=True)
class FeedbackSummary:
    """How probabilities compare with what users say of them.

    Attributes
    ----------
    n : pairs that users spoke of.
    probability : mean of what was served for them.
    share : of them that users confirmed: the same, if calibrated and if users speak of all alike.
    """

    n: int
    probability: float
    share: float


class FeedbackLog:
    """A SQLite file; each pair counts once, with what was said of it last."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(self, feedback: Feedback) -> None:
        """Keep it: durable once this returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(_SCHEMA)
            for column in _ADDED.keys() - _columns(connection):
                connection.execute(f"ALTER TABLE feedback ADD COLUMN {column} {_ADDED[column]}")
            connection.execute(
                "INSERT OR REPLACE INTO feedback (gallery, bundle, query_id, item_id, correct, "
                "rank, match_probability, received_at, match_log_odds, match_fingerprint) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    feedback.gallery,
                    feedback.bundle,
                    feedback.query_id,
                    feedback.item_id,
                    feedback.correct,
                    feedback.rank,
                    feedback.match_probability,
                    time.time(),
                    feedback.match_log_odds,
                    feedback.match_fingerprint,
                ),
            )

    def summary(self, bundle: str) -> FeedbackSummary | None:
        """Of a bundle; None where nobody has said anything."""
        if not self._path.exists():
            return None
        with closing(sqlite3.connect(self._path)) as connection:
            n, probability, share = connection.execute(
                "SELECT COUNT(*), AVG(match_probability), AVG(correct) FROM feedback "
                "WHERE bundle = ?",
                (bundle,),
            ).fetchone()
        return FeedbackSummary(n, probability, share) if n else None

    def pairs(self, match_fingerprint: str) -> SaidPairs:
        """All pairs, of whichever bundle, whose probabilities came from what is named.

        One that several bundles served counts once, with the last word on it.
        """
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as connection:
            if _ADDED.keys() <= _columns(connection):
                rows = connection.execute(
                    "SELECT query_id, item_id, match_log_odds, correct FROM feedback "
                    "WHERE match_fingerprint = ? ORDER BY received_at",
                    (match_fingerprint,),
                ).fetchall()
            else:
                rows = []
            (n_all,) = connection.execute("SELECT COUNT(*) FROM feedback").fetchone()
        last = {(query, item): (log_odds, correct) for query, item, log_odds, correct in rows}
        said = np.array(list(last.values()), dtype=np.float64).reshape(-1, 2)
        queries = np.unique([query for query, _ in last], return_inverse=True)[1]
        return SaidPairs(said[:, 0], said[:, 1] == 1, queries.astype(np.int64), n_all - len(rows))


def _columns(connection: sqlite3.Connection) -> set[str]:
    return {row[1] for row in connection.execute("PRAGMA table_info(feedback)")}
