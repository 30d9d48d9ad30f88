"""Deadlines of requests. Work is cancelled if it exceeds the deadline."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from model_store.errors import DeadlineExceeded

wanted_until: ContextVar[float] = ContextVar("wanted_until", default=math.inf)
"""Deadline of the current request, on the monotonic clock."""

_LOOK_EVERY = 10_000
"""Number of SQLite instructions between two checks of the deadline. This number of instructions
takes at most about a millisecond."""


@contextmanager
def interrupted_when_late(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Interrupt a database query at the deadline.

    Raises
    ------
    DeadlineExceeded : the query did not end before the deadline.
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
            "The lookup of the filter exceeded the time limit of the request. Use a simpler "
            "filter, or request fewer fields."
        ) from error
    finally:
        connection.set_progress_handler(None, 0)
