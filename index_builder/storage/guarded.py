"""Connections that check the IP address of a host before any byte is sent."""

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
    """Raises an error for hosts whose IP address is not allowed, see `Trust`.

    Parameters
    ----------
    trust : function that returns the current trust.

    Attributes
    ----------
    is_redirected : whether a server has redirected the current request to another host. Each
        asyncio task has its own value.
    """

    def __init__(self, trust: Callable[[], Trust]) -> None:
        self._trust = trust
        self.is_redirected = ContextVar("is_redirected", default=False)

    async def check(self, host: str, port: int) -> None:
        """Resolve a host, and raise an error if one of its addresses is not allowed.

        Raises
        ------
        NotFetched
        """
        if self._trust().names_host(host, port):
            return
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):  # the connection fails too, or a proxy resolves the name
            return
        self._require(host, port, addresses_in(found))

    async def check_request(self, request: httpx2.Request) -> None:
        """Raise an error if the host of a request is not allowed; see `check`."""
        await self.check(request.url.host, _port(request.url))

    async def check_redirect(self, response: httpx2.Response) -> None:
        """Raise an error if a response redirects to a host that is not allowed; see `check`.

        The target of a redirect is checked even if the operator has named the redirecting server.
        """
        if not response.has_redirect_location:
            return
        try:
            target = response.url.join(response.headers["Location"])
        except ValueError:  # the client reports the invalid address
            return
        was_at, leads_to = ((url.host, _port(url)) for url in (response.url, target))
        if leads_to != was_at:
            self.is_redirected.set(True)
            await self.check(*leads_to)

    def check_peer(self, host: str, port: int, address: str) -> None:
        """Raise an error if the peer of a connection has an address that is not allowed.

        After `check`, the host name may have been resolved again, to another address.

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
    """A network backend of httpcore; a guard checks its connections."""

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
    """Let ``guard`` check all connections of ``client`` that use no proxy; return ``client``."""
    # The client has no option for a network backend. With a custom transport, it ignores proxies.
    pool: Any = client._transport._pool  # type: ignore[attr-defined]
    pool._network_backend = _Connections(pool._network_backend, guard)
    return client
