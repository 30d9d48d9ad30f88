"""What goes wrong with a file of changes, and in which words it is told."""

from __future__ import annotations

import errno
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from model_store.errors import (
    ChangeUnconfirmed,
    StorageBusy,
    StorageFailed,
    StorageFull,
    WriteError,
    WriteRefused,
)
from model_store.gallery import ChangesFile
from model_store.gallery.milvus.databases import SqliteDatabase
from model_store.sqlite import (
    commit,
    connect,
    errors_in_words,
    of_the_system,
    use_write_ahead_log,
)
from tests.support.live_bundles import upsert

CODES: dict[int, type[WriteError]] = {
    sqlite3.SQLITE_FULL: StorageFull,
    sqlite3.SQLITE_BUSY: StorageBusy,
    sqlite3.SQLITE_BUSY_SNAPSHOT: StorageBusy,
    sqlite3.SQLITE_LOCKED: StorageBusy,
    sqlite3.SQLITE_READONLY: WriteRefused,
    sqlite3.SQLITE_CANTOPEN: WriteRefused,
    sqlite3.SQLITE_PERM: WriteRefused,
    **dict.fromkeys((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_AUTH), StorageFailed),
    **dict.fromkeys((sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOTADB), StorageFailed),
}
WORDS = {
    StorageFull: "no room on the disk",
    StorageBusy: "Another process has been writing to the gallery for 5 s",
    WriteRefused: "can only be read",
    StorageFailed: "cannot be written",
}


@pytest.mark.parametrize(("code", "kind"), CODES.items())
def test_an_error_of_sqlite_is_told_as_what_it_is(code: int, kind: type[WriteError]) -> None:
    error = sqlite3.OperationalError("it said so")
    error.sqlite_errorcode = code
    with pytest.raises(WriteError, match=WORDS[kind]) as told, errors_in_words(Path("a/b.sqlite")):
        raise error
    assert (type(told.value), told.value.__cause__) == (kind, error)
    with (
        pytest.raises(StorageFailed, match=r"b\.sqlite cannot be read \(it said so\)") as unread,
        errors_in_words(Path("a/b.sqlite"), "read"),
    ):
        raise error
    assert "Nothing was changed" not in str(unread.value)  # who cannot read does not know


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE])
def test_used_up_disk_quota_is_no_damaged_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """SQLite reports a quota as an I/O error."""

    def refuse(**_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    path = tmp_path / "b.sqlite"
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = code
    with pytest.raises(StorageFailed, match="Check the disk"), errors_in_words(path):
        raise error
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("model_store.sqlite.TemporaryFile", refuse)
    with pytest.raises(StorageFull, match="no room on the disk"), errors_in_words(path):
        raise error
    with closing(sqlite3.connect(":memory:", factory=Failing)) as connection:
        connection.code = code
        with pytest.raises(StorageFull), errors_in_words(path):
            commit(connection, path)
        connection.code = sqlite3.SQLITE_IOERR_FSYNC
        with pytest.raises(ChangeUnconfirmed):
            commit(connection, path)


def test_an_error_of_sqlite_without_a_code_has_failed() -> None:
    with pytest.raises(StorageFailed, match="cannot be written"), errors_in_words(Path("b")):
        raise sqlite3.ProgrammingError("closed")


class Failing(sqlite3.Connection):
    """A connection that ends each statement with an error of that code."""

    code = sqlite3.SQLITE_OK

    def execute(self, *_: object) -> sqlite3.Cursor:
        error = sqlite3.OperationalError("it said so")
        error.sqlite_errorcode = self.code
        raise error


def test_a_commit_that_the_disk_does_not_confirm_is_not_said_to_have_failed() -> None:
    with closing(sqlite3.connect(":memory:", factory=Failing)) as connection:
        connection.code = sqlite3.SQLITE_IOERR_FSYNC
        with pytest.raises(ChangeUnconfirmed, match="so the change may be lost"):
            commit(connection, Path("a/b.sqlite"))
        connection.code = sqlite3.SQLITE_FULL
        with (
            pytest.raises(StorageFull, match="Nothing was changed"),
            errors_in_words(Path("a/b.sqlite")),
        ):
            commit(connection, Path("a/b.sqlite"))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EROFS, WriteRefused),
        (errno.EACCES, WriteRefused),
        (errno.EPERM, WriteRefused),
        (errno.EIO, StorageFailed),
        *((neighbour, StorageFailed) for neighbour in (11, 113, 128, 130, 222, 1122)),
    ],
)
def test_an_error_of_the_system_is_told_as_what_it_is(number: int, kind: type[WriteError]) -> None:
    told = of_the_system(OSError(number, "it said so"))
    assert type(told) is kind
    assert ("it said so" in str(told)) == (kind is StorageFailed)


def test_a_connection_is_for_any_thread_and_begins_no_transaction(tmp_path: Path) -> None:
    path, found = tmp_path / "a b?.sqlite", []
    with closing(connect(path, "rwc")) as connection:
        assert connection.isolation_level is None
        connection.execute("CREATE TABLE a (b)")
        connection.execute("INSERT INTO a VALUES (1)")
        asking = Thread(
            target=lambda: found.extend(connection.execute("SELECT b FROM a").fetchall())
        )
        asking.start()
        asking.join()
    assert found == [(1,)]
    with (
        closing(connect(path, "ro")) as reader,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        reader.execute("INSERT INTO a VALUES (2)")


def test_a_connection_waits_as_long_as_it_is_told_and_takes_no_lock_on_what_never_changes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.sqlite"
    with closing(connect(path, "rwc")) as writer:
        writer.execute("CREATE TABLE a (b)")
        writer.execute("BEGIN EXCLUSIVE")
        with (
            closing(connect(path, "ro", patience_s=0)) as reader,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            reader.execute("SELECT b FROM a")
        with closing(connect(path, "ro", immutable=True)) as reader:
            assert reader.execute("SELECT b FROM a").fetchall() == []


@pytest.mark.parametrize(
    ("code", "at"), [(sqlite3.SQLITE_BUSY, [10.0, 10.5, 11.0, 11.5]), (sqlite3.SQLITE_FULL, [10.0])]
)
def test_busy_file_is_tried_again_until_the_timeout_has_passed(
    monkeypatch: pytest.MonkeyPatch, code: int, at: list[float]
) -> None:
    times = iter(at)
    monkeypatch.setattr("model_store.sqlite.time.monotonic", lambda: next(times))
    with closing(sqlite3.connect(":memory:", factory=Failing)) as connection:
        connection.code = code
        with pytest.raises(sqlite3.OperationalError, match="it said so"):
            use_write_ahead_log(connection, patience_s=1)
    assert next(times, None) is None


def test_two_who_make_a_file_wait_for_each_other(tmp_path: Path) -> None:
    """SQLite does not where another is just writing to a file that has no such log yet."""
    path = tmp_path / "new.sqlite"
    with closing(connect(path, "rwc")) as first, closing(connect(path, "rw")) as second:
        first.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            use_write_ahead_log(second, patience_s=0)
        waiting = Thread(target=use_write_ahead_log, args=(second,))
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive()
        first.execute("COMMIT")
        waiting.join(10)
        assert second.execute("PRAGMA journal_mode").fetchone() == ("wal",)


JOURNAL = bytes.fromhex("d9d505f920a163d7") + struct.pack(">5I", 0, 0, 0, 512, 4096)
"""The head of a rollback journal of an empty file (https://sqlite.org/fileformat2.html)."""


def left_by_a_kill(path: Path) -> Path:
    """What is left of a process that is killed while it makes the file."""
    path.parent.mkdir(exist_ok=True)
    with closing(connect(path, "rwc")) as connection:
        use_write_ahead_log(connection)
    path.with_name(f"{path.name}-journal").write_bytes(JOURNAL.ljust(512, b"\0"))
    with (
        closing(connect(path, "ro")) as reader,
        pytest.raises(sqlite3.OperationalError, match="readonly"),
    ):
        reader.execute("SELECT 1 FROM sqlite_master")
    return path


def test_log_whose_making_was_killed_holds_nothing_and_is_made_by_the_next_write(
    tmp_path: Path,
) -> None:
    log = ChangesFile(left_by_a_kill(tmp_path / "changes" / "a.sqlite"), "b", "the-encoder")
    log.verify()
    assert (log.start(), log.last(), log.after(0)) == (0, 0, [])
    with log.transaction() as turn:
        turn.add([upsert("one", seed=0)])
    assert [change.id for change in log.after(0)] == ["one"]


def test_database_whose_making_was_killed_holds_nothing_and_is_made_by_the_next_turn(
    tmp_path: Path,
) -> None:
    path = left_by_a_kill(tmp_path / "changes" / "a.sqlite")
    database = SqliteDatabase(path, ["CREATE TABLE IF NOT EXISTS a (b)"])
    assert database.ask("SELECT b FROM a") == []
    with database.turn() as execute:
        execute("INSERT INTO a VALUES (?)", (7,))
    assert database.ask("SELECT b FROM a") == [(7,)]
    database.close()
