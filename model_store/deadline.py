"""Deadlines of answers: work whose caller has gone is cancelled."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from model_store.errors import DeadlineExceeded

wanted_until: ContextVar[float] = ContextVar("wanted_until", default=math.inf)
"""On the monotonic clock; of the request that something is computed for."""

_LOOK_EVERY = 10_000
"""Steps of SQLite's machine: a millisecond or less."""


@contextmanager
def interrupted_when_late(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Interrupt a database query at the deadline.

    Raises
    ------
    DeadlineExceeded : it took longer.
    """
    until = wanted_until.get()
    if until == math.inf:
        yield connection
        return
    connection.set_progress_handler(lambda: time.monotonic() > until, _LOOK_EVERY)
    try:
        yield connection
    except sqlite3.OperationalError as error:
        if time.monotonic() <= until:
            raise
        raise DeadlineExceeded(
            "The filter could not be looked up in the time that a request may take. Ask for less, "
            "or for fewer fields."
        ) from error
    finally:
        connection.set_progress_handler(None, 0)
