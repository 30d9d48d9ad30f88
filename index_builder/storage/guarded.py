"""Connections to hosts named by data; their addresses are checked before any byte is sent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from index_builder.storage.source import NotFetched
from index_builder.storage.trust import Trust, addresses_in

if TYPE_CHECKING:
    import httpx2


class Guard:
    """Refuses hosts with addresses that data may not name.

    Parameters
    ----------
    trust : returns the current trust.

    Attributes
    ----------
    is_redirected : whether another server named the next host; a context variable of each task.
    """

    def __init__(self, trust: Callable[[], Trust]) -> None:
        self._trust = trust
        self.is_redirected = ContextVar("is_redirected", default=False)

    async def check(self, host: str, port: int) -> None:
        """Resolve a host and refuse forbidden addresses; accept a host that does not resolve.

        Raises
        ------
        NotFetched
        """
        if self._trust().names_host(host, port):
            return
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # connecting fails too, or a proxy resolves the name
            return
        self._require(host, port, addresses_in(found))

    async def check_request(self, request: httpx2.Request) -> None:
        """Refuse the host of a request; see `check`."""
        await self.check(request.url.host, _port(request.url))

    async def check_redirect(self, response: httpx2.Response) -> None:
        """Refuse the host that an answer redirects to; see `check`.

        The host is untrusted even if the server is trusted.
        """
        if not response.has_redirect_location:
            return
        try:
            target = response.url.join(response.headers["Location"])
        except ValueError:  # as the client reports
            return
        was_at, leads_to = ((url.host, _port(url)) for url in (response.url, target))
        if leads_to != was_at:
            self.is_redirected.set(True)
            await self.check(*leads_to)

    def check_peer(self, host: str, port: int, address: str) -> None:
        """Refuse a connection by the address of its peer.

        The name may have resolved to another address since `check`.

        Raises
        ------
        NotFetched
        """
        if not self._trust().names_host(host, port):
            self._require(host, port, [address])

    def _require(self, host: str, port: int, addresses: Iterable[str]) -> None:
        trust = self._trust()
        trust = replace(trust, is_foreign=trust.is_foreign or self.is_redirected.get())
        why = trust.refused(host, port, addresses)
        if why is not None:
            raise NotFetched(why)


def _port(url: httpx2.URL) -> int:
    return url.port or (443 if url.scheme == "https" else 80)


class _Connections:
    """A network backend of httpcore whose connections a guard checks."""

    def __init__(self, inner: Any, guard: Guard) -> None:  # noqa: ANN401 - httpcore's
        self._inner, self._guard = inner, guard

    async def connect_tcp(self, host: str, port: int, **options: Any) -> Any:  # noqa: ANN401
        await self._guard.check(host, port)
        stream = await self._inner.connect_tcp(host, port, **options)
        try:
            self._guard.check_peer(host, port, stream.get_extra_info("server_addr")[0])
        except NotFetched:
            await stream.aclose()
            raise
        return stream

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


def guarded(client: httpx2.AsyncClient, guard: Guard) -> httpx2.AsyncClient:
    """Return ``client`` with direct connections checked by a guard."""
    # The client has no option for this, and with a custom transport it ignores proxies.
    pool: Any = client._transport._pool  # type: ignore[attr-defined]
    pool._network_backend = _Connections(pool._network_backend, guard)
    return client
