"""The availability of a database: requests fail at once while it is down."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Seconds between two checks of a database that is down."""

SLOW_S = 1.0
"""Seconds after which a call without an answer is slow. While any call is slow, each new call first
checks the connection."""

CHECK_S = 2.0
"""Approximate maximum time for the answer to a check, in seconds."""


class Availability:
    """The availability of a database; thread-safe.

    While the database is down, calls fail without delay, and a thread checks the database.

    Parameters
    ----------
    name : name of the database for the log.
    ask : function that sends a small request to the database, and raises an error if the database
        does not answer within `CHECK_S`.
    is_reachable : function that returns whether the database's port accepts a connection; takes
        milliseconds.
    """

    def __init__(
        self, name: str, ask: Callable[[], object], is_reachable: Callable[[], bool]
    ) -> None:
        self._name, self._ask, self._is_reachable = name, ask, is_reachable
        self._lock, self._checking = threading.Lock(), threading.Lock()
        self._began: dict[int, float] = {}
        self._number = 0
        self._answered_at = time.monotonic()
        self._down = False
        self._closed = threading.Event()

    def begin(self) -> int | None:
        """Register a new call and return its number; None while the database is down."""
        now = time.monotonic()
        with self._lock:
            if self._down:
                return None
            is_slow = any(now - began > SLOW_S for began in self._began.values())
        if is_slow and not self._is_reachable():
            self.fail(UNREACHABLE)
            return None
        with self._lock:
            self._number += 1
            self._began[self._number] = now
            return self._number

    def end(self, number: int) -> None:
        """Record that a call has ended."""
        with self._lock:
            self._began.pop(number, None)

    def answered(self) -> None:
        """Record that the database has answered a call."""
        self._answered_at = time.monotonic()

    def check(self, reason: str | None = None) -> None:
        """Check the database after a call without an answer; calls fail if it is down.

        Only this call may have been slow, or all connections may be in use. So the database is not
        down if it has answered another call within `SLOW_S`, or if it answers the check.

        Parameters
        ----------
        reason : why the call failed, for the log; it is logged if the port takes no connection.
        """
        with self._checking:
            if not self._is_reachable():
                self.fail((reason or UNREACHABLE)[:_SHOWN])
            elif not self._down and time.monotonic() - self._answered_at > SLOW_S:
                try:
                    self._ask()
                except Exception as error:
                    self.fail(f"{type(error).__name__}: {' '.join(str(error).split())}"[:_SHOWN])
                else:
                    self.answered()

    def fail(self, reason: str) -> None:
        """Record that the database did not answer; calls fail until it answers again."""
        with self._lock:
            if self._down or self._closed.is_set():
                return
            self._down = True
        logger.warning(
            "%s does not answer; requests are refused until it does",
            self._name,
            extra={"fields": {"reason": reason}},
        )
        threading.Thread(target=self._look, name="database-availability", daemon=True).start()

    def close(self) -> None:
        """Stop the checks."""
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_EVERY_S):
            if self._is_reachable():
                with suppress(Exception):
                    self._ask()
                    with self._lock:
                        self._down = False
                    logger.info("%s answers again", self._name)
                    return


UNREACHABLE = "its port takes no connection"

_SHOWN = 300
"""Maximum number of characters of an error in the log."""

_CONNECT_S = 0.045
"""Timeout in seconds for the check of the port, after a call was slow or failed."""


def takes_connections(address: tuple[str, int] | str) -> bool:
    """Return whether a port, or the Unix socket at a path, accepts a connection."""
    try:
        if isinstance(address, str):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_CONNECT_S)
                connection.connect(address)
        else:
            socket.create_connection(address, _CONNECT_S).close()
    except OSError:
        return False
    return True
