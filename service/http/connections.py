"""uvicorn's HTTP/1.1 protocol with a lingering close and limits on heads, times and connections.

Fairness between clients is the task of the proxy: see ``docker/``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.http import limits
from service.http.problems import head_refusal
from service.http.transport import BoundedTransport, one_of_the_most_frequent
from service.http.understood import is_cut_off


class BoundedConnection(HttpToolsProtocol):
    """A connection within `service.http.limits`; one too many closes an idle one."""

    def __init__(self, *given: Any, max_connections: int, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*given, **options)
        self._max_connections = max_connections
        self._in_head = self._is_broken = False
        self._is_whole = True  # the request is complete
        self._n_unparsed = self._n_pieces = self._n_body_bytes = 0

    @property
    def is_idle(self) -> bool:
        """True while no request waits for an answer."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; close an idle connection if there are too many."""
        self.bounded = BoundedTransport(transport, self.close_when_read)
        super().connection_made(self.bounded)  # type: ignore[arg-type]
        self.bounded.limit(limits.HEAD_TIMEOUT_S)
        if len(self.connections) > self._max_connections:
            others = (one for one in self.connections - {self} if isinstance(one, type(self)))
            idle = [(one.client[0], one) for one in others if one.is_idle and one.client]
            one_of_the_most_frequent(idle, self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and break reference cycles."""
        super().connection_lost(exc)
        self.bounded.release()

    def shutdown(self) -> None:
        """Close, or accept no further request; limit the wait for the rest of this one."""
        super().shutdown()
        if self.is_idle:
            self.bounded.limit(limits.LINGER_AT_SHUTDOWN_S)

    def data_received(self, data: bytes) -> None:
        """Parse; limit the bytes that are neither head, body nor end of a request."""
        if self._is_broken:
            return
        if self.is_idle and self.bounded.timer is None:
            self.bounded.limit(limits.HEAD_TIMEOUT_S)
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
        """Begin the answer, unless the connection is being closed."""
        self._in_head, self._n_unparsed = False, 0
        if limits.is_too_large(self.url, self.headers):
            self._n_unparsed = limits.MAX_HEAD_BYTES + 1
            raise ValueError("the head is too large")  # the parser stops
        if is_cut_off(self.parser.get_method(), self.url):
            raise ValueError("the address is cut off")
        self._n_pieces = self._n_body_bytes = 0
        if len(self.pipeline) >= limits.MAX_PIPELINED:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.bounded.limit(None)
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
        """Note that the request is complete."""
        self._is_whole, self._n_unparsed = True, 0
        if self.cycle is not None:
            super().on_message_complete()
        if self.transport.is_closing():
            self.close_when_read()
        elif self.is_idle:  # the rest of a request that was answered early
            self.bounded.limit(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """Discard the unread part of the body, and limit the wait for the rest."""
        super().on_response_complete()
        if self.is_idle:
            self.cycle.body = bytearray()
            if not self._is_whole:
                self.bounded.limit(limits.LINGER_S)

    def pause_writing(self) -> None:
        """Limit the time without progress of a client that does not read."""
        super().pause_writing()
        self.bounded.limit(limits.READ_TIMEOUT_S)

    def resume_writing(self) -> None:
        """Note that the client has read."""
        super().resume_writing()
        rest_is_due = self.is_idle and not self._is_whole
        self.bounded.limit(limits.LINGER_S if rest_is_due or self.transport.is_closing() else None)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text
        """Refuse a request that is not HTTP/1.1 or has too large a head, if no answer has begun."""
        self._is_broken, self._is_whole = True, False
        if self.transport.is_closing():
            return
        if self.pipeline or not (self.is_idle or not self.cycle.response_started):
            self.bounded.finish()
            return
        if not self.is_idle:  # the body is broken: its route ends
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(head_refusal(too_large=self._n_unparsed > limits.MAX_HEAD_BYTES))
        self.close_when_read()

    def close_when_read(self) -> None:
        """Close; if bytes of a request have not arrived, wait for them for a limited time first."""
        if self._is_whole:
            self.bounded.limit(limits.READ_TIMEOUT_S)  # for what is still to be sent
            self.bounded.finish()
        elif not self.transport.is_closing():
            self.flow.resume_reading()
            self.bounded.linger()
