"""Redis calls that never raise, even if Redis is unreachable, slow or full, or replies wrongly.

A Redis error never makes a request fail. Replies are returned unchanged: callers must verify a
reply before they use it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

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


class RedisConnections:
    """Sends single commands to Redis, each on an idle connection or on a new one.

    `redis.asyncio.Redis` runs each command through its own retries, locks, timeouts and telemetry,
    about sixty functions. None of them is needed here, because the caller (`RedisCalls`) limits the
    time and makes no second attempt.

    Parameters
    ----------
    connect_timeout_s : timeout in seconds for a new connection.
    """

    def __init__(self, url: str, connect_timeout_s: float) -> None:
        # Slow to import, and only a service with Redis needs it.
        from redis.asyncio.connection import ConnectionPool  # noqa: PLC0415
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.exceptions import ResponseError  # noqa: PLC0415

        pool = ConnectionPool.from_url(
            url, socket_connect_timeout=connect_timeout_s, retry=Retry(NoBackoff(), 0)
        )
        self._new_connection: Callable[[], AbstractConnection] = pool.make_connection
        self._idle: list[AbstractConnection] = []
        self._response_error = ResponseError

    async def execute(self, *command: str | bytes | int) -> object:
        """Return the reply to one command.

        Raises
        ------
        redis.exceptions.RedisError, OSError, ValueError and others : there is no valid reply.
        """
        connection = self._idle.pop() if self._idle else self._new_connection()
        try:
            if connection.is_connected and await _is_spent(connection):
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await connection.connect()  # type: ignore[no-untyped-call]
            await connection.send_command(*command)
            reply: object = await connection.read_response()
        except self._response_error:  # a complete reply
            self._idle.append(connection)
            raise
        except BaseException:  # the reply may still arrive
            await connection.disconnect(nowait=True)
            raise
        self._idle.append(connection)
        return reply

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().disconnect()


async def _is_spent(connection: AbstractConnection) -> bool:
    """Return whether Redis has closed a connection, or has sent bytes without a command."""
    # redis 6 and 7 have another name for this method.
    can_read = getattr(connection, "can_read", None) or connection.can_read_destructive
    try:
        return bool(await can_read())
    except Exception:  # closed
        return True
