"""The states of drift tests in the feedback's SQLite file, so that a restart loses none."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.decision import DriftState

_SCHEMA = """
CREATE TABLE IF NOT EXISTS drift (
  bundle TEXT PRIMARY KEY,
  numbers TEXT NOT NULL,
  scores BLOB NOT NULL,
  seen BLOB NOT NULL,
  saved_at REAL NOT NULL
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class SavedDrift:
    """A drift test, and which queries it has seen.

    Attributes
    ----------
    test : of the drift test.
    seen : (m,) uint64, the first 8 bytes of the ids of the last queries, oldest first.
    """

    test: DriftState
    seen: NDArray[np.uint64]


class DriftStates:
    """A table of a SQLite file, one row a bundle.

    Where several processes share the file, each tests the queries that it answers, and a restart
    goes on from what was saved last: still a valid test, of the queries of one of them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, bundle: str, saved: SavedDrift) -> None:
        """Keep the state of a bundle, in place of what was kept before."""
        row = (
            bundle,
            json.dumps(saved.test.numbers),
            saved.test.scores.astype("<f8").tobytes(),
            saved.seen.astype("<u8").tobytes(),
            time.time(),
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(_SCHEMA)
            connection.execute("INSERT OR REPLACE INTO drift VALUES (?, ?, ?, ?, ?)", row)

    def load(self, bundle: str) -> SavedDrift | None:
        """Return what was saved of a bundle; None where nothing was."""
        if not self._path.exists():
            return None
        with closing(sqlite3.connect(self._path)) as connection, connection:
            connection.execute(_SCHEMA)
            row = connection.execute(
                "SELECT numbers, scores, seen FROM drift WHERE bundle = ?", (bundle,)
            ).fetchone()
        if row is None:
            return None
        numbers, scores, seen = row
        state = DriftState(np.frombuffer(scores, "<f8").astype(np.float64), json.loads(numbers))
        return SavedDrift(state, np.frombuffer(seen, "<u8").astype(np.uint64))
