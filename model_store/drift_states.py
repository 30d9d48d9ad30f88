"""The states of drift tests, stored in the feedback file across restarts."""

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

from model_store.decision import DriftState

_SCHEMA = """
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
            connection.execute(_SCHEMA)
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
            connection.execute(_SCHEMA)
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
