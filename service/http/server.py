"""Starts uvicorn, with a lingering close, and limits on heads, times and connections.

A proxy must limit the connections of each client: see ``docker/``.

A socket that is closed with unread bytes sends RST, and the client may then lose the answer.
Therefore, if the service answers early, it discards the rest of the request before it closes the
socket.

uvicorn writes head and body separately. If a replica is killed between these writes, a proxy that
has already forwarded the head cannot retry on another replica. Therefore all writes of one turn of
the event loop are joined.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from service import workers
from service.settings import Settings

from . import limits
from .problems import head_refusal

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


class BoundedConnection(HttpToolsProtocol):
    """A connection with the limits of `service.http.limits`.

    If there are more than ``max_connections``, a new connection closes an idle connection.
    """

    def __init__(self, *given: Any, max_connections: int, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*given, **options)
        self._max_connections = max_connections
        self._in_head = self._is_broken = False
        self._is_whole = True  # the request is complete
        self._n_unparsed = self._n_pieces = self._n_body_bytes = 0

    @property
    def is_idle(self) -> bool:
        """True while no request of this connection waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the connection. If there are too many connections, close an idle connection.

        If no connection is idle, close this connection.
        """
        self.bounded = BoundedTransport(transport, self.close_when_read)
        super().connection_made(self.bounded)  # type: ignore[arg-type]
        self.bounded.limit(limits.HEAD_TIMEOUT_S)
        if len(self.connections) > self._max_connections:
            others = (one for one in self.connections - {self} if isinstance(one, type(self)))
            idle = [(one.client[0], one) for one in others if one.is_idle and one.client]
            one_of_the_most_frequent(idle, self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection, and break its reference cycles."""
        super().connection_lost(exc)
        self.bounded.release()

    def shutdown(self) -> None:
        """Close the connection after its current request is answered, or immediately if it is idle.

        If part of the request has not arrived, the connection waits for a limited time.
        """
        super().shutdown()
        if self.is_idle:
            self.bounded.limit(limits.LINGER_AT_SHUTDOWN_S)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuse a head, or a trailer, with too many bytes."""
        if self._is_broken:
            return
        if self.is_idle and self.bounded.timer is None:
            self.bounded.limit(limits.HEAD_TIMEOUT_S)
        self._n_unparsed += len(data)
        super().data_received(data)
        if self._n_unparsed > limits.MAX_HEAD_BYTES and not self._is_broken:
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """Begin the head of a request."""
        super().on_message_begin()
        self._in_head, self._is_whole = True, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header of the head; ignore trailers, which uvicorn would treat as headers."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the head, and start the application, unless the connection is closing."""
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
        """Receive a piece of the body. The number of pieces is limited, since each costs time."""
        self._n_unparsed = 0
        self._n_pieces, self._n_body_bytes = self._n_pieces + 1, self._n_body_bytes + len(body)
        if self._n_pieces > limits.MAX_PIECES + self._n_body_bytes // limits.BYTES_OF_A_PIECE:
            raise ValueError("the body has too many pieces")  # the parser stops
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Record that the request has arrived completely."""
        self._is_whole, self._n_unparsed = True, 0
        if self.cycle is not None:
            super().on_message_complete()
        if self.transport.is_closing():
            self.close_when_read()
        elif self.is_idle:  # the request was answered before its body had arrived
            self.bounded.limit(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        """Discard the received part of the body, and limit the wait for the rest of the body."""
        super().on_response_complete()
        if self.is_idle:
            self.cycle.body = bytearray()
            if not self._is_whole:
                self.bounded.limit(limits.LINGER_S)

    def pause_writing(self) -> None:
        """Limit the time until the client reads the answer again."""
        super().pause_writing()
        self.bounded.limit(limits.READ_TIMEOUT_S)

    def resume_writing(self) -> None:
        """Remove the limit of `pause_writing`, because the client reads again."""
        super().resume_writing()
        rest_is_due = self.is_idle and not self._is_whole
        self.bounded.limit(limits.LINGER_S if rest_is_due or self.transport.is_closing() else None)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's text
        """Refuse a request whose head is malformed or too large, if no answer has begun."""
        self._is_broken, self._is_whole = True, False
        if self.transport.is_closing():
            return
        if self.pipeline or not (self.is_idle or not self.cycle.response_started):
            self.bounded.finish()
            return
        if not self.is_idle:  # the body is malformed: end the application's wait for it
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(head_refusal(too_large=self._n_unparsed > limits.MAX_HEAD_BYTES))
        self.close_when_read()

    def close_when_read(self) -> None:
        """Close the connection, after a limited wait for the missing part of a request."""
        if self._is_whole:
            self.bounded.limit(limits.READ_TIMEOUT_S)  # for the unsent part of the answer
            self.bounded.finish()
        elif not self.transport.is_closing():
            self.flow.resume_reading()
            self.bounded.linger()


def is_cut_off(method: bytes, address: bytes) -> bool:
    """Return whether the parser would cut the address at a `#` or `?`; an id can contain both.

    The parser reads ``/items/a#b`` as ``/items/a``, and ``/items/who?`` as ``/items/who``. A write
    would then change another item.
    """
    return b"#" in address or (method in {b"PUT", b"DELETE"} and address.endswith(b"?"))


STARTUP_FAILURE = 3
"""Exit status of a worker that cannot serve; uvicorn then ends all workers."""

WORKER_TIMEOUT_S = 60
"""Timeout in seconds for a worker's answer to its parent process. After the timeout, the parent
replaces the worker."""

BACKLOG = 2048
"""Maximum number of connections that wait in the kernel to be accepted."""


def serve(
    open_app: Callable[[], ASGIApp],
    settings: Settings,
    listeners: Sequence[socket.socket],
    grace_s: int,
) -> bool:
    """Serve on ``listeners`` until a signal; return False if the service could not start.

    Parameters
    ----------
    open_app : function that returns the application. Each worker calls ``open_app`` on its event
        loop, after uvicorn has set its signal handlers.
    grace_s : seconds that requests in progress get after a signal.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = settings.max_connections
    most = most if files == resource.RLIM_INFINITY else min(most, max(1, files * 3 // 4))
    config = uvicorn.Config(
        open_app,
        factory=True,
        workers=settings.processes,
        timeout_worker_healthcheck=WORKER_TIMEOUT_S,
        log_config=None,
        log_level="error",  # uvicorn's warnings are about invalid requests of clients
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `KnownProxies` does that
        http=partial(BoundedConnection, max_connections=most),  # type: ignore[arg-type]
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=settings.keep_alive_s,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=grace_s,
    )
    if settings.processes > 1:
        with TemporaryDirectory(prefix="vouch-") as shared:
            os.environ[workers.DIRECTORY] = shared
            several = _Workers(config, [*listeners])
            several.run()
        return all(one.exitcode != STARTUP_FAILURE for one in several.processes)
    server = uvicorn.Server(config)
    try:
        with suppress(KeyboardInterrupt):
            server.run([*listeners])
    except SystemExit as ended:
        if ended.code != STARTUP_FAILURE:
            raise
    return server.started


class _Workers(Multiprocess):
    """uvicorn's supervisor of the workers; it also passes a second stop signal to the workers."""

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended or do not answer."""
        for one in self.processes:
            # The parent closes its copy of the worker's pipe, to notice immediately when the worker
            # ends. Otherwise, the parent would wait for `WORKER_TIMEOUT_S`, and ignore signals.
            one.child_conn.close()
        super().keep_subprocess_alive()

    def join_all(self) -> None:
        """Wait until all workers have ended. A further signal ends all workers immediately."""
        self.signal_queue.clear()
        while any(one.process.is_alive() for one in self.processes):
            if self.signal_queue:
                self.signal_queue.clear()
                for one in self.processes:
                    one.process.terminate()
            time.sleep(0.1)


class WorkerListener(socket.socket):
    """A bound socket that does not listen. Each worker that receives it binds its own socket.

    The kernel divides new connections evenly between the sockets of one address (``SO_REUSEPORT``).
    If the workers shared one socket, one of them would often accept nearly all connections.
    """

    def __init__(self, family: int, address: tuple[Any, ...], *, is_dual: bool) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            self.setsockopt(socket.SOL_SOCKET, option, 1)
        if family == socket.AF_INET6:
            self.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_dual)
        self.bind(address)
        self._again = partial(WorkerListener, family, self.getsockname(), is_dual=is_dual)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how a worker binds its own socket."""
        return self._again, ()


def open_listeners(host: str, port: int, n_workers: int = 1) -> list[socket.socket]:
    """Bind a socket for each address of ``host``; ``::`` takes IPv4 connections too.

    Raises
    ------
    OSError : an address cannot be bound.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            taken = listeners[0].getsockname()[1] if listeners and not port else port
            listeners.append(
                socket.create_server(
                    (str(address[0]), taken),
                    family=family,
                    backlog=BACKLOG,
                    dualstack_ipv6=address[0] == "::" and socket.has_dualstack_ipv6(),
                )
            )
        # Only the kernel of Linux divides connections between sockets of one address.
        if n_workers > 1 and sys.platform == "linux":
            for place, listener in enumerate(listeners):
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                name = listener.getsockname()
                held = WorkerListener(listener.family, name, is_dual=name[0] == "::")
                # Otherwise, another program could take the address until a worker listens.
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                listeners[place] = held
                listener.close()
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
