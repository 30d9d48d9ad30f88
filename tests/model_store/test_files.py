"""Files are whole or as before, and one process at a time holds a lock."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import Timeout

from model_store.files import (
    FreeSpace,
    abandoned_folders,
    json_text,
    lock_between_processes,
    replacing,
    work_folder,
)


class TestJSON:
    def test_the_same_content_has_the_same_text_in_whatever_order_it_was_made(self) -> None:
        one, other = {"b": [1, 2], "a": {"y": "é", "x": None}}, {"a": {"x": None, "y": "é"}}
        assert json_text(one) == json_text(other | {"b": [1, 2]})
        assert json.loads(json_text(one)) == one

    def test_people_can_read_it_and_compare_it_line_by_line(self) -> None:
        assert json_text({"b": "é", "a": 0.5}) == '{\n "a": 0.5,\n "b": "é"\n}\n'

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_what_json_does_not_have_is_refused(self, value: float) -> None:
        with pytest.raises(ValueError, match="JSON"):
            json_text({"a": [value]})


class TestReplacing:
    def test_a_file_takes_its_place_when_it_is_finished(self, tmp_path: Path) -> None:
        target = tmp_path / "pointer"
        target.write_text("before")
        with replacing(target) as draft:
            draft.write_text("after")
            assert target.read_text() == "before"
        assert target.read_text() == "after"
        assert [path.name for path in tmp_path.iterdir()] == ["pointer"]

    def test_an_error_leaves_it_as_before_and_nothing_beside_it(self, tmp_path: Path) -> None:
        target = tmp_path / "pointer"
        target.write_text("before")
        with pytest.raises(ZeroDivisionError), replacing(target) as draft:  # noqa: PT012 - all of it
            draft.write_text("half")
            raise ZeroDivisionError
        assert target.read_text() == "before"
        assert [path.name for path in tmp_path.iterdir()] == ["pointer"]

    def test_content_is_on_the_disk_before_it_has_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        target, seen = tmp_path / "pointer", list[bool]()
        fsync = os.fsync

        def noting(descriptor: int) -> None:
            seen.append(target.exists())
            fsync(descriptor)

        monkeypatch.setattr("model_store.files.os.fsync", noting)
        with replacing(target) as draft:
            draft.write_text("content")
        assert seen == [False, True]  # the file, then the directory that names it


HOLD = """
import sys
from pathlib import Path
from model_store.files import lock_between_processes
with lock_between_processes(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
def test_a_lock_is_held_by_one_process_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Timeout):
            lock_between_processes(path).acquire(blocking=False)
        holder.kill()
        holder.wait()
        with lock_between_processes(path).acquire(timeout=10):
            pass


def test_lock_makes_no_directory_in_the_place_of_a_moved_one(tmp_path: Path) -> None:
    folder = tmp_path / "bundles"
    lock = lock_between_processes(folder / "lock")
    with pytest.raises(FileNotFoundError, match="bundles"):
        lock.acquire(blocking=False)
    with pytest.raises(FileNotFoundError), lock:
        pass
    assert list(tmp_path.iterdir()) == []
    folder.mkdir()
    with lock:
        assert lock.is_locked


class TestWorkFolder:
    def test_folder_is_removed_after_its_work_and_after_an_error(self, tmp_path: Path) -> None:
        with work_folder(tmp_path, ".work-") as folder:
            (folder / "file").touch()
        assert not list(tmp_path.iterdir())
        with pytest.raises(ZeroDivisionError), work_folder(tmp_path, ".work-"):
            raise ZeroDivisionError
        assert not list(tmp_path.iterdir())

    def test_folder_that_became_something_else_stays(self, tmp_path: Path) -> None:
        with work_folder(tmp_path, ".work-") as folder:
            folder.rename(tmp_path / "made")
        assert [path.name for path in tmp_path.iterdir()] == ["made"]

    def test_abandoned_folder_is_removed_by_the_next(self, tmp_path: Path) -> None:
        """Not one that another works in, nor what only has a similar name."""
        abandoned = tmp_path / ".work-0123abcd"
        similar = [".work-0123abc", ".work-0123abcde", ".work-notes", "work-0123abcd", ".work-"]
        for path in (abandoned, *(tmp_path / name for name in similar)):
            path.mkdir()
        (abandoned / "file").touch()
        (tmp_path / ".work-00000000").touch()  # a file
        with work_folder(tmp_path, ".work-") as one:
            assert not abandoned.exists()
            with work_folder(tmp_path, ".work-") as other:
                assert one.exists()
                assert other.exists()
                assert list(abandoned_folders(tmp_path, ".work-")) == []
        assert {path.name for path in tmp_path.iterdir()} == {*similar, ".work-00000000"}

    def test_without_locks_there_is_work_and_no_folder_is_abandoned(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_locks(descriptor: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr("fcntl.flock", no_locks)
        with work_folder(tmp_path, ".work-") as folder:
            assert list(abandoned_folders(tmp_path, ".work-")) == []
            assert folder.exists()

    def test_new_folder_that_another_process_has_locked_is_left_to_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        locked, flock = [True], fcntl.flock

        def lock(descriptor: int, operation: int) -> None:
            if locked:
                locked.pop()
                raise BlockingIOError
            flock(descriptor, operation)

        monkeypatch.setattr("fcntl.flock", lock)
        with work_folder(tmp_path, ".work-"):
            assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize(("free", "n_bytes"), [(100, 90), (101, 91), (9, 9), (0, 0)])
def test_a_tenth_of_the_free_space_stays_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, n_bytes: int
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=free))
    space = FreeSpace(tmp_path)
    assert space.n_bytes == n_bytes
    assert space.has(n_bytes)
    assert not space.has(n_bytes + 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=free - 1))
    assert not space.has(n_bytes)
