"""Starts uvicorn with the limits of this package, in one process or several workers."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from service.http.connections import BoundedConnection
from service.processes import workers
from service.settings import Settings

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
    with suppress(KeyboardInterrupt):
        server.run([*listeners])
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
