"""The server of a process: uvicorn, within our bounds."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import uvicorn
from starlette.types import ASGIApp, Scope

from service.http.connections import BoundedConnection, Room
from service.http.doors import Hesitation
from service.http.limits import IDLE_TIMEOUT_S
from service.settings import Settings


class _Server(uvicorn.Server):
    """A server that tells when it answers."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and tell so."""
        await super().startup(sockets)
        if self.started:
            self._started()


def serve(
    app: ASGIApp,
    settings: Settings,
    doors: Sequence[socket.socket],
    account_of: Callable[[Scope], str],
    grace_s: int,
    started: Callable[[], None] = lambda: None,
) -> bool:
    """Answer whoever comes to ``doors`` until a signal ends it; False if it could not start.

    Parameters
    ----------
    account_of : tells on whose account a request is.
    grace_s : seconds that requests in flight may take to end.
    started : called as soon as it answers.
    """
    several = settings.processes not in {1, "auto"}
    room = Room(settings.max_connections, account_of, Hesitation() if several else None)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # `KnownProxies` does that
        http=partial(BoundedConnection, room=room),  # type: ignore[arg-type]
        ws="none",
        timeout_keep_alive=int(IDLE_TIMEOUT_S),
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=grace_s,
    )
    server = _Server(config, started)
    with suppress(KeyboardInterrupt):
        server.run([*doors])
    return server.started
