"""Redis calls that never raise, even if Redis is unreachable, slow or full, or replies wrongly.

A Redis error never makes a request fail. Replies are returned unchanged: callers must verify a
reply before they use it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Literal

REST_AFTER_FAILURE_S = 1.0
"""Seconds after a failure in which no request waits for Redis."""


class Rest:
    """A circuit breaker: after a failure, attempts are skipped for `REST_AFTER_FAILURE_S`."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_over(self) -> bool:
        """True if an attempt may be made now."""
        return time.monotonic() >= self._until

    @property
    def failed_last(self) -> bool:
        """True if the last attempt failed."""
        return self._until > 0

    def begin(self) -> bool:
        """Record a failure; return True for the first failure after a success."""
        first = not self.failed_last
        self._until = time.monotonic() + REST_AFTER_FAILURE_S
        return first

    def end(self) -> None:
        """Note a success."""
        self._until = 0.0


logger = logging.getLogger(__name__)

SHOWN = 200
"""Maximum length of a Redis error message in the log, in characters."""


Command = Literal["read", "write", "delete"]
"""A kind of command. A full Redis refuses writes only; a replica of another Redis also deletes."""


class RedisCalls:
    """Calls Redis with a timeout, and never raises.

    Parameters
    ----------
    timeout_s : timeout of a call with all its round trips, in seconds.
    without_it : text for the log that states what replaces Redis while Redis is unreachable.
    """

    def __init__(self, timeout_s: float, without_it: str) -> None:
        self._timeout_s = timeout_s
        self._without_it = without_it
        self._rest = Rest()
        self._refused: set[Command] = set()

    @property
    def failed_last(self) -> bool:
        """Return whether Redis was unreachable at the last attempt, or refused the last read.

        Redis refuses reads too if its database, or the permission to use it, does not exist.
        """
        return self._rest.failed_last or "read" in self._refused

    @property
    def refuses_writes(self) -> bool:
        """Return whether Redis refused the last write."""
        return "write" in self._refused

    async def ask(self, call: Callable[[], Awaitable[object]], command: Command = "read") -> object:
        """Return Redis's reply; None if there is no valid reply."""
        if not self._rest.is_over:
            return None
        from redis.exceptions import ResponseError  # noqa: PLC0415 - slow, and many have no Redis

        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await call()
        except ResponseError as error:  # Redis is full or a replica, or the key has another type
            if command not in self._refused:
                self._refused.add(command)
                logger.warning("Redis refused: %s", str(error)[:SHOWN])
            return None
        # Invalid replies raise ValueError, RecursionError and others in the Redis client.
        except Exception as error:
            if self._rest.begin():
                said = str(error)[:SHOWN]
                if isinstance(error, TimeoutError):
                    said = said or f"no answer within {self._timeout_s:g} s"
                fields = {"reason": f"{type(error).__name__}: {said}"}
                message = f"Redis cannot be reached, {self._without_it} without it"
                logger.warning(message, extra={"fields": fields})
            return None
        self._rest.end()
        self._refused.discard(command)
        return answer
