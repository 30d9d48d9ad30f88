"""Errors of writing, in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from model_store.errors import OutputError


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
