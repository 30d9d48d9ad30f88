"""An asyncio transport that joins writes, closes with a linger, and has a time limit.

A socket that is closed with unread bytes sends RST, and the client may then lose the answer.
Therefore, if the service answers early, it discards the rest of the request before it closes the
socket.

uvicorn writes head and body separately. If a replica is killed between these writes, a proxy that
has already forwarded the head cannot retry on another replica. Therefore all writes of one turn of
the event loop are joined.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from service.http import limits

T = TypeVar("T")

MAX_JOINED_BYTES = 2**16
"""Joined writes are sent as soon as they reach this size, so that they need little memory."""


class BoundedTransport:
    """Wraps a transport. `close` only calls a given function; `finish` closes the transport."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close
        self.lingers = False
        self._joined: list[bytes] = []
        self.timer: asyncio.TimerHandle | None = None
        self._n_unsent = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is of the transport
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Queue data, and send it with all other writes of this turn of the event loop."""
        if not self._joined:
            asyncio.get_running_loop().call_soon(self._send)
        self._joined.append(data)
        if sum(map(len, self._joined)) >= MAX_JOINED_BYTES:
            self._send()

    def finish(self) -> None:
        """Send the queued data, and close the wrapped transport."""
        self._send()
        self._transport.close()

    def is_closing(self) -> bool:
        """Return whether the transport is closing, or is discarding a request before it closes."""
        return self.lingers or self._transport.is_closing()

    def linger(self) -> None:
        """Send the queued data; discard the rest of the request for a limited time."""
        self.lingers = True
        self._send()
        self.limit(limits.LINGER_S)
        if self._transport.can_write_eof():  # with TLS, the client closes the connection
            self._transport.write_eof()

    def limit(self, seconds: float | None) -> None:
        """Abort the connection after ``seconds``; None only removes the earlier limit."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if seconds is not None:
            self._send()
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(seconds, self._look)
            self._n_unsent = self._transport.get_write_buffer_size()

    def release(self) -> None:
        """Cancel the timer, and break the reference cycles."""
        self.limit(None)
        self._joined.clear()
        self.close = self._transport.close

    def _send(self) -> None:
        if self._joined and not self._transport.is_closing():
            joined, self._joined = self._joined, []
            self._transport.writelines(joined)  # without a copy of the data in each connection

    def _look(self) -> None:
        """Abort the connection, unless the client has read data since the limit was set."""
        if 0 < self._transport.get_write_buffer_size() < self._n_unsent:
            self.limit(limits.READ_TIMEOUT_S)
        else:
            self._transport.abort()


def one_of_the_most_frequent(named: Sequence[tuple[str, T]], default: T) -> T:
    """Find the most frequent name, and return the first value with this name.

    Returns ``default`` if ``named`` is empty.
    """
    if not named:
        return default
    ((most, _),) = Counter(name for name, _ in named).most_common(1)
    return next(value for name, value in named if name == most)
