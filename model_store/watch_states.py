"""Drift tests and the share of absent queries, stored in the feedback file across restarts."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .decision import DriftState, ServedShare

_DRIFT_SCHEMA = """
CREATE TABLE IF NOT EXISTS drift_streams (
  bundle TEXT NOT NULL,
  caller TEXT NOT NULL,
  state TEXT NOT NULL,
  seen BLOB NOT NULL,
  saved_at REAL NOT NULL,
  PRIMARY KEY (bundle, caller)
) WITHOUT ROWID
"""


ALL_CALLERS = ""
"""Name of the test over the queries of all callers."""


@dataclass(frozen=True, slots=True)
class SavedDrift:
    """The state of a drift test, and the ids of its last queries.

    Attributes
    ----------
    caller : caller of the queries, or `ALL_CALLERS`.
    test : state of the drift test.
    seen : (m,) uint64, first 8 bytes of the ids of the last queries, oldest first.
    """

    caller: str
    test: DriftState
    seen: NDArray[np.uint64]


class DriftStates:
    """A table of an SQLite file with one row for each bundle and caller.

    If several processes share the file, each process tests its own queries. After a restart, a
    process continues from the last saved state. The test remains valid, because each state comes
    from the queries of a single process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, bundle: str, saved: Sequence[SavedDrift]) -> None:
        """Save the tests of a bundle; they replace the stored tests of the same callers."""
        if not saved:
            return
        rows = [
            (
                bundle,
                one.caller,
                json.dumps(asdict(one.test)),
                one.seen.astype("<u8").tobytes(),
                time.time(),
            )
            for one in saved
        ]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(_DRIFT_SCHEMA)
            statement = "INSERT OR REPLACE INTO drift_streams VALUES (?, ?, ?, ?, ?)"
            connection.executemany(statement, rows)

    def load(self, bundle: str, since: float = 0.0, limit: int = 257) -> list[SavedDrift]:
        """Return at most ``limit`` tests of a bundle, in the order of saving.

        Parameters
        ----------
        since : time in seconds since 1970; tests that were saved before this time are left out.
        """
        if not self._path.exists():
            return []
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(_DRIFT_SCHEMA)
            rows = connection.execute(
                "SELECT caller, state, seen FROM drift_streams WHERE bundle = ? AND saved_at >= ? "
                "ORDER BY saved_at DESC, caller LIMIT ?",
                (bundle, since, limit),
            ).fetchall()
        return [
            SavedDrift(
                caller,
                DriftState(**json.loads(state)),
                np.frombuffer(seen, "<u8").astype(np.uint64),
            )
            for caller, state, seen in reversed(rows)
        ]


_SHARE_SCHEMA = """
CREATE TABLE IF NOT EXISTS served_share (
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

    def add(self, bundle: str, no_match: Sequence[float]) -> SavedShare:
        """Add served queries of a bundle, and return the total counts.

        Parameters
        ----------
        no_match : P(no match) of the queries at the share of the fit, oldest first.
        """
        if not no_match and not self._path.exists():
            return SavedShare(ServedShare(), 0)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute(_SHARE_SCHEMA)
            # Between the read and the write, no other process may write.
            connection.execute("BEGIN IMMEDIATE" if no_match else "BEGIN")
            row = connection.execute(
                "SELECT counts, n_served FROM served_share WHERE bundle = ?", (bundle,)
            ).fetchone()
            counts, n_before = (None, 0) if row is None else row
            kept = None if counts is None else np.frombuffer(counts, "<f8").astype(np.float64)
            served = ServedShare(kept)
            for value in no_match:
                served.observe(value)
            saved = SavedShare(served, n_before + len(no_match))
            if no_match:
                connection.execute(
                    "INSERT OR REPLACE INTO served_share VALUES (?, ?, ?, ?)",
                    (bundle, served.counts.astype("<f8").tobytes(), saved.n_served, time.time()),
                )
            connection.execute("COMMIT")
        return saved
