"""Trust: which servers get credentials, and which IP addresses a data source may use.

The operator names a data source on the command line. The source can contain further addresses,
for example of an image in a table, of a page of a IIIF manifest, or of a redirect. A third party
has chosen the addresses in the source, so Vouch does not trust these addresses.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from model_store.errors import ConfigError, DatasetError
from model_store.lists import split_list

from .source import NotFetched
from .urls import BUCKETS, WEB, in_bucket, scheme_of, shown

if TYPE_CHECKING:
    import httpx2


ALLOWED_ORIGINS = "VOUCH_ALLOWED_ORIGINS"
"""Environment variable in which the operator names additional trusted origins."""

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Trust:
    """The trusted origins, and whether a data source is on another machine.

    Attributes
    ----------
    origins : ``https://host:443`` or ``s3://bucket``. Credentials are sent only to these origins,
        which may have any IP address.
    is_foreign : whether a data source is on another machine. If true, hosts outside `origins` must
        have a public address. If false, hosts outside `origins` may have any address that is not
        link-local. Cloud providers serve credentials at link-local addresses.
    """

    origins: frozenset[str] = frozenset()
    is_foreign: bool = False

    @classmethod
    def of_environment(cls) -> Trust:
        """Return a `Trust` with the origins in the environment variable `ALLOWED_ORIGINS`.

        Raises
        ------
        ConfigError : an entry of the variable is not an origin.
        """
        try:
            names = split_list(os.environ.get(ALLOWED_ORIGINS, ""))
            return cls(frozenset(map(origin_of, names)))
        except (ValueError, DatasetError):
            raise ConfigError(
                f"{ALLOWED_ORIGINS} is not a list of origins. Use origins such as "
                "https://images.example,http://10.0.0.7:8000,s3://bucket."
            ) from None

    def naming(self, url: str, *, is_foreign: bool) -> Trust:
        """Return a trust that also includes the origin of ``url``."""
        origins = self.origins | {origin_of(url)}
        return Trust(origins, is_foreign=self.is_foreign or is_foreign)

    def names(self, scheme: str, host: str, port: int | None) -> bool:
        """Return whether the operator has named the origin of a request."""
        return f"{scheme}://{host.lower()}:{port or _PORTS[scheme]}" in self.origins

    def names_host(self, host: str, port: int) -> bool:
        """Return whether the operator has named the host of a connection."""
        return any(self.names(scheme, host, port) for scheme in WEB)

    def names_bucket(self, url: str) -> bool:
        """Return whether a bucket may be read with the credentials of the environment."""
        return not self.is_foreign or in_bucket(url)[0] in self.origins

    def admits(self, address: str) -> bool:
        """Return whether a data source may use a host at the IP ``address``."""
        ip = ip_address(address.partition("%")[0])
        if isinstance(ip, IPv6Address):
            ip = ip.ipv4_mapped or ip.sixtofour or ip
        if self.is_foreign:
            return ip.is_global and not ip.is_multicast
        return not (ip.is_link_local or ip.is_multicast)

    def refused(self, host: str, port: int, addresses: Iterable[str]) -> str | None:
        """Return the reason why a data source cannot use a host; None if it can use the host."""
        found = next((one for one in addresses if not self.admits(one)), None)
        if found is None:
            return None
        host = f"[{host}]" if ":" in host else host
        origin = f"https://{host}" if port == 443 else f"http://{host}"
        origin += "" if port in _PORTS.values() else f":{port}"
        kind = "a public address" if self.is_foreign else "allowed for a data source"
        return (
            f"{origin} has the address {found}, which is not {kind}. If this is intended, set "
            f"{ALLOWED_ORIGINS}={origin}."
        )


def origin_of(url: str) -> str:
    """Return the origin of a URL; for a file in a bucket, the URL of the bucket.

    Raises
    ------
    DatasetError : the URL has no host.
    """
    scheme = scheme_of(url)
    if scheme in BUCKETS:
        return in_bucket(url)[0]
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORTS[scheme]
    except ValueError:
        host, port = None, 0
    if not host:
        raise DatasetError(f"{shown(url)} names no host.")
    return f"{scheme}://{host}:{port}"


def addresses_in(found: Iterable[tuple[object, ...]]) -> list[str]:
    """Return the IP addresses in an answer of `socket.getaddrinfo`."""
    return [str(one[4][0]) for one in found if one[0] in {socket.AF_INET, socket.AF_INET6}]  # type: ignore[index]


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
