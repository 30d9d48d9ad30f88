"""Reading no more of a connection than its request has use for; the rest waits in the kernel.

An event loop hands over all that has come, up to 256 KiB of each connection, also of those whose
turn is far off. A protocol with a buffer of its own is given as much as that takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class BoundedReader(asyncio.BufferedProtocol):
    """The protocol that the event loop sees, in place of one that takes all that has come.

    Parameters
    ----------
    connection : is told of everything.
    buffer : shared by all connections of an event loop, which fills it and passes on what is in it
        before it reads of another.
    n_bytes : tells how many bytes may be read next.
    """

    def __init__(
        self, connection: asyncio.Protocol, buffer: memoryview, n_bytes: Callable[[], int]
    ) -> None:
        self._connection = connection
        self._buffer = buffer
        self._n_bytes = n_bytes

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - how much there may be
        """Return where the event loop may read to; see `asyncio.BufferedProtocol`."""
        return self._buffer[: self._n_bytes()]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        self._connection.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        """Pass on that the client sends no more."""
        return self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection has ended."""
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the client does not read."""
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that it has read."""
        self._connection.resume_writing()
