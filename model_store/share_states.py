"""The estimated share of absent queries of a bundle, over all processes that serve the bundle."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from model_store.decision import ServedShare

_SCHEMA = """
CREATE TABLE IF NOT EXISTS absent_share (
  bundle TEXT PRIMARY KEY,
  counts BLOB NOT NULL,
  n_served INTEGER NOT NULL,
  saved_at REAL NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class SavedShare:
    """The counts of queries that all processes have served from one bundle.

    Attributes
    ----------
    served : histogram for the estimate of the share.
    n_served : number of counted queries.
    """

    served: ServedShare
    n_served: int


class ShareStates:
    """A table of an SQLite file with one row for each bundle.

    All processes that share the file use the same row. Each process adds the queries that it has
    served since its last update, and continues from the total of all processes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, bundle: str, assumed: float, no_match: Sequence[float]) -> SavedShare:
        """Add served queries of a bundle, and return the total counts.

        Parameters
        ----------
        assumed : share of absent queries in the fit of the bundle's probabilities.
        no_match : P(no match) of the queries at that share, oldest first.
        """
        if not no_match and not self._path.exists():
            return SavedShare(ServedShare(assumed), 0)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute(_SCHEMA)
            # Between the read and the write, no other process may write.
            connection.execute("BEGIN IMMEDIATE" if no_match else "BEGIN")
            row = connection.execute(
                "SELECT counts, n_served FROM absent_share WHERE bundle = ?", (bundle,)
            ).fetchone()
            counts, n_before = (None, 0) if row is None else row
            kept = None if counts is None else np.frombuffer(counts, "<f8").astype(np.float64)
            served = ServedShare(assumed, kept)
            for value in no_match:
                served.observe(value)
            saved = SavedShare(served, n_before + len(no_match))
            if no_match:
                connection.execute(
                    "INSERT OR REPLACE INTO absent_share VALUES (?, ?, ?, ?)",
                    (bundle, served.counts.astype("<f8").tobytes(), saved.n_served, time.time()),
                )
            connection.execute("COMMIT")
        return saved
