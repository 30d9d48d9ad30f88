"""The errors of a full disk or of a missing permission, from each library that writes files."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import faiss
import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from model_store.files import create, disk_error, replacing

FULL = "No space left on device"


def of_sqlite(code: int, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, FULL), FULL),
        (OSError(errno.EROFS, "Read-only file system", "a"), "a: Read-only file system"),
        (OSError(errno.ENOSPC, f"Error writing. Detail: {FULL}"), FULL),
        (OSError("200 requested and 102 written"), "200 requested and 102 written"),
        (SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)"), FULL),
        (of_sqlite(sqlite3.SQLITE_FULL, "database or disk is full"), "database or disk is full"),
        (of_sqlite(sqlite3.SQLITE_CANTOPEN_ISDIR, "unable to open"), "unable to open"),
    ],
)
def test_every_library_gets_the_same_advice(error: Exception, said: str) -> None:
    assert disk_error(error) == (
        f"{said}. Free disk space or grant permission, or name another directory; then run the "
        "same command again."
    )


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        of_sqlite(sqlite3.SQLITE_ERROR, "no such table: disk"),
        SafetensorError("Error while deserializing: No such file or directory (os error 2)"),
        KeyError("Permission denied"),
        RuntimeError("CUDA error: Operation not permitted when the stream is capturing"),
    ],
)
def test_other_errors_are_not_of_the_disk(error: Exception) -> None:
    assert disk_error(error) is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_the_libraries_say_so_on_a_full_disk() -> None:
    index = faiss.IndexFlatIP(64)
    index.add(np.zeros((1000, 64), np.float32))
    with pytest.raises(RuntimeError) as by_faiss:
        faiss.write_index(index, "/dev/full")
    assert disk_error(by_faiss.value)
    with pytest.raises(OSError, match="written") as by_numpy, Path("/dev/full").open("wb") as file:
        np.zeros(100_000).tofile(file)
    assert disk_error(by_numpy.value)


def test_a_missing_permission_is_an_error_of_the_disk_in_safetensors() -> None:
    with pytest.raises(SafetensorError) as by_safetensors:
        save_file({"a": np.zeros(3)}, "/sys/kernel/a.safetensors")
    assert disk_error(by_safetensors.value)


def test_a_new_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(OSError, match=FULL) as raised:
            create(path, b"content")
    assert raised.value.filename == str(path)
    assert not path.exists()
    create(path, b"content", 0o600)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"content", 0o600)
    with pytest.raises(FileExistsError) as refused:
        create(path, b"other")
    assert refused.value.filename == str(path)
    assert path.read_bytes() == b"content"


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, FULL)


def test_a_full_disk_names_the_file_that_was_being_written(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(OSError, match=FULL) as raised, replacing(path):
        raise OSError(errno.ENOSPC, FULL)
    assert raised.value.filename == str(path)
    with pytest.raises(ConnectionResetError) as raised, replacing(path):
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    assert raised.value.filename is None
