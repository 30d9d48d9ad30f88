"""uvicorn's HTTP/1.1 protocol, with the limits and the close that uvicorn lacks.

- A lingering close. A socket that is closed with unread bytes sends RST, which discards the answer
  before it. So after an early answer the rest of the request is read and discarded first.
- Limits: bytes and headers of a head, seconds for a head, seconds without progress while the client
  reads an answer or sends the rest of an answered request, and the number of connections.

Fairness between clients is the task of the proxy: see ``docker/``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http import limits
from service.http.problems import head_refusal


class BoundedConnection(HttpToolsProtocol):
    """A connection within the bounds of `service.http.limits`.

    Parameters
    ----------
    max_connections : of the server; one more closes an idle one of the address that has most.
    """

    def __init__(self, *given: Any, max_connections: int, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*given, **options)
        self._max_connections = max_connections
        self._in_head = self._is_broken = False
        self._is_whole = True  # nothing of a request is still to come
        self._n_unparsed = self._n_unsent = self._n_pieces = self._n_body_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """True while no request waits for an answer."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, in place of an idle connection where there are too many."""
        super().connection_made(_LingeringTransport(transport, self.close_when_read))  # type: ignore[arg-type]
        self._limit(limits.HEAD_TIMEOUT_S)
        if len(self.connections) > self._max_connections:
            idle: defaultdict[str, list[BoundedConnection]] = defaultdict(list)
            for one in self.connections - {self}:
                if isinstance(one, BoundedConnection) and one.is_idle and one.client:
                    idle[one.client[0]].append(one)
            max(idle.values(), key=len, default=[self])[0].transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and leave no reference cycle behind."""
        super().connection_lost(exc)
        self._limit(None)
        self.transport.close = self.transport.finish  # type: ignore[attr-defined, method-assign]

    def shutdown(self) -> None:
        """Close, or take no further request; what was answered early is not awaited for long."""
        super().shutdown()
        if self.is_idle:
            self._limit(limits.LINGER_AT_SHUTDOWN_S)

    def data_received(self, data: bytes) -> None:
        """Parse; limit what makes up no head, no body and no end of a request."""
        if self._is_broken:
            return
        if self.is_idle and self._timer is None:
            self._limit(limits.HEAD_TIMEOUT_S)
        self._n_unparsed += len(data)
        super().data_received(data)
        if self._n_unparsed > limits.MAX_HEAD_BYTES and not self._is_broken:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._in_head, self._is_whole = True, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; ignore trailers, which would become headers."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer, unless the connection is being closed."""
        self._in_head, self._n_unparsed = False, 0
        n_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if n_bytes > limits.MAX_HEAD_BYTES or len(self.headers) > limits.MAX_HEADERS:
            self._n_unparsed = limits.MAX_HEAD_BYTES + 1
            raise ValueError("the head is too large")  # the parser stops
        if is_cut_off(self.parser.get_method(), self.url):
            raise ValueError("the address is cut off")
        self._n_pieces = self._n_body_bytes = 0
        if len(self.pipeline) >= limits.MAX_PIPELINED:
            self.transport.abort()
        elif not self.transport.is_closing():
            self._limit(None)
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body; each costs the same, whatever its size."""
        self._n_unparsed = 0
        self._n_pieces, self._n_body_bytes = self._n_pieces + 1, self._n_body_bytes + len(body)
        if self._n_pieces > limits.MAX_PIECES + self._n_body_bytes // limits.BYTES_OF_A_PIECE:
            raise ValueError("the body comes in too many pieces")  # the parser stops
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that all of the request is there."""
        self._is_whole, self._n_unparsed = True, 0
        if self.cycle is not None:
            super().on_message_complete()
        if self.transport.is_closing():
            self.close_when_read()
        elif self.is_idle:  # the rest of a request that was answered early
            self._limit(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """Drop what the route did not read, and limit the time for what is still to come."""
        super().on_response_complete()
        if self.is_idle:
            self.cycle.body = bytearray()
            if not self._is_whole:
                self._limit(limits.LINGER_S)

    def pause_writing(self) -> None:
        """Limit the time without progress of a client that does not read."""
        super().pause_writing()
        self._limit(limits.READ_TIMEOUT_S)

    def resume_writing(self) -> None:
        """Note that the client has read."""
        super().resume_writing()
        rest_is_due = self.is_idle and not self._is_whole
        self._limit(limits.LINGER_S if rest_is_due or self.transport.is_closing() else None)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text
        """Refuse what is no HTTP/1.1, or has too large a head, where no answer has begun."""
        self._is_broken, self._is_whole = True, False
        if self.transport.is_closing():
            return
        if self.pipeline or not (self.is_idle or not self.cycle.response_started):
            self.transport.finish()  # type: ignore[attr-defined]
            return
        if not self.is_idle:  # the body is broken: its route ends
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(head_refusal(too_large=self._n_unparsed > limits.MAX_HEAD_BYTES))
        self.close_when_read()

    def close_when_read(self) -> None:
        """Close; where bytes of a request are still to come, after they have come, or a while."""
        if self._is_whole:
            self._limit(limits.READ_TIMEOUT_S)  # for what is still to be sent
            self.transport.finish()  # type: ignore[attr-defined]
        elif not self.transport.is_closing():
            self.transport.lingers = True  # type: ignore[attr-defined]
            self._limit(limits.LINGER_S)
            self.flow.resume_reading()
            if self.transport.can_write_eof():  # else, over TLS, the client closes
                self.transport.write_eof()

    def _limit(self, seconds: float | None) -> None:
        """Abort the connection after so many seconds, in place of an earlier limit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = self.loop.call_later(seconds, self._look)
            self._n_unsent = self.transport.get_write_buffer_size()

    def _look(self) -> None:
        """Abort, unless the client has read some of the answer since the limit was set."""
        if 0 < self.transport.get_write_buffer_size() < self._n_unsent:
            self._limit(limits.READ_TIMEOUT_S)
        else:
            self.transport.abort()


def is_cut_off(method: bytes, address: bytes) -> bool:
    """Return whether an address ends before what its sender means.

    Of ``/items/a#b`` the parser leaves ``/items/a``, of ``/items/who?`` the part before the mark:
    a write to them would be to another item.
    """
    return b"#" in address or (method in {b"PUT", b"DELETE"} and address.endswith(b"?"))


class _LingeringTransport:
    """A transport whose `close` is another function; ``finish`` is its own."""

    def __init__(self, transport: asyncio.Transport, close: Any) -> None:  # noqa: ANN401
        self._transport = transport
        self.close, self.finish = close, transport.close
        self.lingers = False

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever it is of the transport
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """True also while the rest of a request is discarded."""
        return self.lingers or self._transport.is_closing()
