"""Opens the feedback file, which several processes can share, and defines its tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from model_store.errors import ConfigError
from model_store.sqlite import Storage, errors_in_words, of_the_system

_FIRST_BYTES = b"SQLite format 3\0"

_TABLES = """
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
  first_received_at REAL,
  selection TEXT,
  draw_probability REAL,
  PRIMARY KEY (bundle, query_id, item_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS audits (
  bundle TEXT NOT NULL,
  query_id TEXT NOT NULL,
  item_id TEXT NOT NULL,
  asked_at REAL NOT NULL,
  predicted REAL,
  probability REAL,
  least REAL,
  n_before INTEGER,
  predicted_before REAL,
  squares_before REAL,
  PRIMARY KEY (bundle, query_id, item_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS decisions (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  gallery TEXT NOT NULL,
  bundle TEXT NOT NULL,
  query_id TEXT NOT NULL,
  decision TEXT NOT NULL,
  item_id TEXT,
  label TEXT,
  reviewer TEXT,
  comment TEXT,
  decided_at REAL NOT NULL,
  pairs TEXT NOT NULL,
  undone_at REAL,
  selection TEXT NOT NULL DEFAULT 'volunteered',
  draw_probability REAL
);
CREATE INDEX IF NOT EXISTS decisions_by_query ON decisions (query_id, gallery);
CREATE TABLE IF NOT EXISTS decision_requests (
  gallery TEXT NOT NULL,
  request_key TEXT NOT NULL,
  request TEXT NOT NULL,
  number INTEGER NOT NULL,
  kept_at REAL NOT NULL,
  PRIMARY KEY (gallery, request_key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS answered (
  gallery TEXT NOT NULL,
  encoder TEXT NOT NULL,
  query_id TEXT NOT NULL,
  answered_at REAL NOT NULL,
  mean BLOB NOT NULL,
  variance BLOB NOT NULL,
  features BLOB NOT NULL,
  PRIMARY KEY (gallery, encoder, query_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS answered_by_time ON answered (answered_at);
-- A separate table, because replicas of release 0.2 write `answered` without column names.
CREATE TABLE IF NOT EXISTS answered_versions (
  gallery TEXT NOT NULL,
  encoder TEXT NOT NULL,
  query_id TEXT NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (gallery, encoder, query_id)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS answered_deleted AFTER DELETE ON answered BEGIN
  DELETE FROM answered_versions
  WHERE gallery = OLD.gallery AND encoder = OLD.encoder AND query_id = OLD.query_id;
END;
CREATE TABLE IF NOT EXISTS forgotten (
  gallery TEXT NOT NULL,
  query_id TEXT NOT NULL,
  forgotten_at REAL NOT NULL,
  PRIMARY KEY (gallery, query_id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS cases (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  gallery TEXT NOT NULL,
  encoder TEXT NOT NULL,
  bundle TEXT NOT NULL,
  query_id TEXT NOT NULL,
  reason TEXT NOT NULL,
  drawn INTEGER NOT NULL,
  verdict TEXT NOT NULL,
  found TEXT NOT NULL,
  no_match_probability REAL,
  match_log_odds REAL,
  match_fingerprint TEXT,
  reviewers INTEGER NOT NULL,
  wanted INTEGER NOT NULL,
  kept_at REAL NOT NULL,
  media_type TEXT,
  n_bytes INTEGER NOT NULL,
  settled_at REAL,
  draw_probability REAL,
  drawn_evenly INTEGER,
  UNIQUE (gallery, query_id)
);
CREATE TABLE IF NOT EXISTS case_images (
  number INTEGER PRIMARY KEY,
  data BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS case_leases (
  number INTEGER NOT NULL,
  reviewer TEXT NOT NULL,
  until REAL NOT NULL,
  PRIMARY KEY (number, reviewer)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS case_turns (
  gallery TEXT PRIMARY KEY,
  given INTEGER NOT NULL
) WITHOUT ROWID;
"""

FITTED_TO = {"match_log_odds": "REAL", "match_fingerprint": "TEXT"}
_ADDED = {
    "feedback": FITTED_TO
    | {"first_received_at": "REAL", "selection": "TEXT", "draw_probability": "REAL"},
    "decisions": {
        "selection": "TEXT NOT NULL DEFAULT 'volunteered'",
        "draw_probability": "REAL",
    },
    "audits": {
        "predicted": "REAL",
        "probability": "REAL",
        "least": "REAL",
        "n_before": "INTEGER",
        "predicted_before": "REAL",
        "squares_before": "REAL",
    },
    "cases": {"draw_probability": "REAL", "drawn_evenly": "INTEGER"},
}
"""Columns that files of earlier releases lack. Rows without these values cannot be used for a
fit."""

WAIT_S = 10.0
"""Timeout in seconds for the lock of the file."""

_STORAGE = Storage("the feedback file", "the feedback file, or its directory", WAIT_S)


@contextmanager
def opened(path: Path, *, writing: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the feedback file; create the file, missing tables and missing columns.

    Parameters
    ----------
    writing : whether to open a write transaction.

    Raises
    ------
    WriteError : the file cannot be read, or the writes could not be stored.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise of_the_system(error, _STORAGE) from error
    with (
        errors_in_words(path, "written" if writing else "read", _STORAGE),
        closing(sqlite3.connect(path, timeout=WAIT_S)) as connection,
        connection,
    ):
        connection.executescript(_TABLES)
        if _missing(connection):
            connection.execute("BEGIN IMMEDIATE")  # another process may add them now
            for table, column in _missing(connection):
                kind = _ADDED[table][column]
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
            connection.commit()
        # SQLite overwrites deleted data, so that a requested deletion is complete.
        connection.execute("PRAGMA secure_delete = ON")
        if writing:
            connection.execute("BEGIN IMMEDIATE")
        yield connection


def require_feedback_file(path: Path) -> None:
    """Check that a file exists and is an SQLite file; an empty file is one without tables.

    Raises
    ------
    ConfigError : the file does not exist, cannot be read, or is another kind of file.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(len(_FIRST_BYTES))
    except FileNotFoundError as error:
        raise ConfigError(
            f"The feedback file {path} does not exist. Name the file of the service's setting "
            "VOUCH_FEEDBACK."
        ) from error
    except OSError as error:
        raise ConfigError(
            f"The feedback file {path} cannot be read: {error.strerror}. Name the file of the "
            "service's setting VOUCH_FEEDBACK."
        ) from error
    if begin and begin != _FIRST_BYTES:
        raise ConfigError(
            f"{path} is not a feedback file: it is no SQLite file. Name the file of the service's "
            "setting VOUCH_FEEDBACK."
        )


def _missing(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return pairs (table, column): the columns that a file from an earlier release lacks."""
    return [
        (table, column)
        for table, added in _ADDED.items()
        for column in added.keys() - columns(connection, table)
    ]


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the names of a table's columns; empty if the table does not exist."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
