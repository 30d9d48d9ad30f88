"""What was appended to a live gallery: found beside the base, and on the disk when acknowledged."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.gallery import ChangesFile
from model_store.gallery.live import rows
from model_store.gallery.live.log import Transaction
from model_store.gallery.live.snapshot import GallerySnapshot
from model_store.sqlite import connect
from tests.support.live_bundles import upsert


def test_of_what_was_appended_as_many_are_found_as_are_wanted() -> None:
    angles = np.linspace(0, 1, 10)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    snapshot: Any = SimpleNamespace(
        _appended=SimpleNamespace(directions=directions),
        _base=SimpleNamespace(n_rows=100),
        _by_id=lambda rows, similarities: rows,
    )
    none = np.array([], dtype=np.int64)
    query = np.array([1, 0], dtype=np.float32)
    found, _ = GallerySnapshot._merged(snapshot, query, 3, np.arange(10), none, np.array([]))
    assert found.tolist() == [100, 101, 102]


def test_a_change_is_flushed_before_it_is_acknowledged(tmp_path: Path) -> None:
    """By SQLite's word: 2 is FULL."""
    connection = ChangesFile(tmp_path / "changes.sqlite", "b", "the-encoder")._open_writer()
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    connection.close()


def test_changes_after_a_number_before_the_start_of_the_log_begin_at_its_start(
    tmp_path: Path,
) -> None:
    """A reader may ask for the start just before another process makes the log."""
    log = ChangesFile(tmp_path / "changes.sqlite", "b", "the-encoder")
    with closing(connect(log.path, "rwc")) as connection:
        rows.make(connection, log._identity, 7)
        Transaction(connection).add([upsert("late", seed=0)])
        connection.commit()
    assert log.start() == 7
    assert [change.sequence for change in log.after(0)] == [8]


def test_of_what_was_appended_all_that_are_as_near_as_the_last_are_compared_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("model_store.gallery.live.snapshot._SLACK", 0.0)
    compared: list[int] = []

    def by_id(rows: NDArray[np.int64], _: object) -> NDArray[np.int64]:
        compared.append(len(rows))
        return rows

    its: Any = SimpleNamespace(
        _appended=SimpleNamespace(directions=np.eye(4, dtype=np.float32)),
        _base=SimpleNamespace(n_rows=100),
        _by_id=by_id,
    )
    none = np.array([], dtype=np.int64)
    query = np.array([1, 0, 0, 0], dtype=np.float32)
    for n in (1, 2):
        found, _ = GallerySnapshot._merged(its, query, n, np.arange(4), none, np.array([]))
        assert found.tolist() == [100, 101][:n]
    assert compared == [1, 4]
