"""The server of a process: uvicorn, within our bounds."""

from __future__ import annotations

import logging
import resource
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from service.http.connections import BoundedConnection
from service.http.drain import Drain
from service.settings import Settings

logger = logging.getLogger("service")

BACKLOG = 2048
"""Connections that the kernel holds until they are accepted."""


class _Server(uvicorn.Server):
    """A server that says when it answers, and drains before it ends."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], drain: Drain) -> None:
        super().__init__(config)
        self._started, self._drain = started, drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        if self.started:
            self._started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain after the first signal; after the second end at once."""
        is_first = not self._drain.begun
        super().handle_exit(sig, frame)
        if is_first:
            self._drain.begin()
            self.should_exit = not self.started or self._drain.seconds == 0
        else:
            self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """End when the service has drained."""
        self.should_exit = self.should_exit or self._drain.is_over
        return await super().on_tick(counter)


def serve(
    app: ASGIApp,
    settings: Settings,
    listeners: Sequence[socket.socket],
    drain: Drain,
    grace_s: int,
    started: Callable[[], None] = lambda: None,
) -> bool:
    """Answer on ``listeners`` until a signal ends it; False if it could not start.

    Parameters
    ----------
    drain : is begun by the first signal.
    grace_s : seconds that requests in flight may take to end after that.
    started : called as soon as it answers.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = settings.max_connections
    most = most if files == resource.RLIM_INFINITY else min(most, max(1, files * 3 // 4))
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="error",  # what clients send is no event of the service
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
    server = _Server(config, started, drain)
    with suppress(KeyboardInterrupt):
        server.run([*listeners])
    return server.started


def open_listeners(host: str, port: int) -> list[socket.socket]:
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
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners
