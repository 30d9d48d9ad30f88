"""Errors of reading and writing, in words."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from model_store.errors import DatasetError, OutputError

T = TypeVar("T")


@contextmanager
def writing(what: str, kept: str = "") -> Iterator[None]:
    """Say what could not be written, and what to do.

    Parameters
    ----------
    kept : what is not lost, a sentence.

    Raises
    ------
    OutputError
    """
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"Cannot write {what}: {why}. {kept or 'Nothing was begun.'} Make room or give "
            "permission there, or name another directory; then run the same command again."
        ) from error


def read_from(entries: Iterable[T], scratch: Path) -> Iterator[T]:
    """Give what a source has, and say what of it cannot be read; it is no error of writing.

    Parameters
    ----------
    scratch : where the source writes what it unpacks.

    Raises
    ------
    DatasetError
    """
    try:
        yield from entries
    except OSError as error:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        if not name or Path(name).is_relative_to(scratch):
            raise
        raise DatasetError(
            f"{name} cannot be read: {error.strerror}. Give permission there, or name a source "
            "without it."
        ) from error
