"""What users say of matches: kept for the next calibration, and to see how true this one is."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

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
  PRIMARY KEY (bundle, query_id, item_id)
) WITHOUT ROWID
"""


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
    """

    gallery: str
    bundle: str
    query_id: str
    item_id: str
    correct: bool
    rank: int
    match_probability: float


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
            connection.execute(
                "INSERT OR REPLACE INTO feedback VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    feedback.gallery,
                    feedback.bundle,
                    feedback.query_id,
                    feedback.item_id,
                    feedback.correct,
                    feedback.rank,
                    feedback.match_probability,
                    time.time(),
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
