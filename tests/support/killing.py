"""A process that is killed at a system call, in this process; and processes that stand still."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

CALLS = ("fsync", "link", "mkdir", "rename", "replace", "rmdir", "unlink")
"""Functions of `os` that change what a crash leaves on a disk."""


class Killed(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(folder: Path, n_calls: int) -> Iterator[None]:
    """Leave ``folder`` as it was just before a call of `CALLS`, if there are so many; 0: never.

    A kill is no power cut: nothing waits for the disk. What the code does after that call, to clean
    up or to close files, is undone: a killed process does nothing more. Files that the caller has
    open are those of the folder before.
    """
    fsync, frozen = os.fsync, folder.with_name(f"{folder.name}.frozen")
    n_left = n_calls

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            nonlocal n_left
            n_left -= 1
            if n_left == 0:
                shutil.copytree(folder, frozen)
                raise Killed
            if real is fsync:
                return None
            return real(*arguments, **named)

        return called

    with suppress(Killed), pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted(getattr(os, name)))
        yield
    if frozen.exists():  # also where the code swallowed the exception
        shutil.rmtree(folder)
        frozen.rename(folder)


@contextmanager
def halted(*processes: psutil.Process) -> Iterator[None]:
    """Let processes stand still, as on a machine that swaps; they may be killed meanwhile."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.resume()
