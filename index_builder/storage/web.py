"""Reads files from web servers, and decides which servers are trusted.

The operator names a data source on the command line. The source can contain further addresses,
for example of an image in a table, of a page of a IIIF manifest, or of a redirect. A third party
has chosen the addresses in the source, so Vouch does not trust these addresses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from netrc import NetrcParseError
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, getproxies, urlopen

from index_builder.storage.source import NotFetched, Opened, TryAgain
from index_builder.storage.urls import BUCKETS, WEB, in_bucket, scheme_of, shown, without_secrets
from model_store.errors import ConfigError, DatasetError
from model_store.installation import DISTRIBUTION, how_to_install, installed_version
from model_store.text_values import split_list

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


N_REDIRECTS = 5
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_REASONS = {
    401: "requires a password; write it into ~/.netrc, and add the host to VOUCH_ALLOWED_ORIGINS",
    403: "does not allow it",
    404: "has no such file",
    410: "no longer has this file",
    412: "has another version of the file now",
}


class Web:
    """Reads files from any web server, through the configured proxies.

    Passwords in ``~/.netrc`` are sent only to origins that the operator has named. A host that the
    operator has not named must have an allowed IP address, see `Trust`. After a redirect, the
    address of the new host is checked, too.

    Parameters
    ----------
    stall_s : timeout in seconds for connecting, and between two chunks.
    n_connections : maximum number of connections.
    trust : function that returns the current trust.

    Raises
    ------
    DatasetError : the extra `remote` is not installed, or ``~/.netrc`` cannot be read.
    """

    def __init__(self, stall_s: float, n_connections: int, trust: Callable[[], Trust]) -> None:
        try:
            import httpx2  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise DatasetError(
                f"Reading from the web needs httpx2. {how_to_install('remote')}"
            ) from error
        # The log messages of httpx2 contain URLs with signatures.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
        self._httpx = httpx2
        self._netrc = _netrc(httpx2)
        self._trust, self._guard = trust, Guard(trust)
        # A proxy resolves names itself, so connections cannot be checked. Each request is checked
        # instead.
        has_proxy = bool({"http", "https", "all"} & getproxies().keys())
        client = httpx2.AsyncClient(
            event_hooks={
                "request": [self._guard.check_request] if has_proxy else [],
                "response": [self._guard.check_redirect],
            },
            follow_redirects=True,
            max_redirects=N_REDIRECTS,
            timeout=httpx2.Timeout(stall_s, pool=None),
            limits=httpx2.Limits(max_connections=n_connections),
            # Compressed content could expand to any size.
            headers={
                "User-Agent": f"{DISTRIBUTION}/{installed_version()}",
                "Accept-Encoding": "identity",
            },
        )
        self._client = guarded(client, self._guard)

    @asynccontextmanager
    async def opened(self, url: str, version: str = "", start: int = 0) -> AsyncIterator[Opened]:
        """Request a file; see `ByteSource`."""
        # A weak validator does not guarantee that both parts belong to the same version.
        resumes = start > 0 and version.startswith('"')
        headers = {"Range": f"bytes={start}-", "If-Range": version} if resumes else {}
        self._guard.is_redirected.set(False)
        try:
            async with self._client.stream(
                "GET", url, headers=headers, auth=self._auth(url)
            ) as response:
                _require_content(url, response)
                if response.status_code == 206 and not response.headers.get(
                    "Content-Range", ""
                ).startswith(f"bytes {start}-"):
                    raise NotFetched(
                        f"{_host(url)} sends another part of the file than the requested part."
                    )
                yield Opened(
                    start if response.status_code == 206 else 0,
                    response.headers.get("ETag") or response.headers.get("Last-Modified") or "",
                    response.aiter_raw(),
                )
        except (self._httpx.TooManyRedirects, self._httpx.UnsupportedProtocol) as error:
            raise NotFetched(f"{_host(url)} has no valid redirect ({_said(error)}).") from error
        except self._httpx.TransportError as error:
            raise TryAgain(f"{_host(url)}: the connection failed ({_said(error)}).") from error
        except (self._httpx.InvalidURL, UnicodeError, ValueError) as error:
            raise NotFetched(f"{shown(url)} is no web address ({_said(error)}).") from error

    def _auth(self, url: str) -> httpx2.NetRCAuth | None:
        """Return the passwords that the operator has stored; see `_netrc`.

        Returns None if the URL already has a password, or if the origin of the URL is not trusted.
        """
        parts = self._httpx.URL(url)
        if parts.userinfo or parts.scheme not in WEB:
            return None
        is_named = self._trust().names(parts.scheme, parts.host, parts.port)
        return self._netrc if is_named else None

    async def require_there(self) -> None:
        """Do nothing, because other servers may answer if one server is unavailable."""

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _require_content(url: str, response: httpx2.Response) -> None:
    """Raise an error if the response is not a file."""
    status = response.status_code
    if status in _BUSY:
        raise TryAgain(f"{_host(url)} answers {status}.", _retry_after(response))
    if status not in {200, 206}:
        raise NotFetched(
            f"{_host(url)} {_REASONS.get(status, 'does not return the file')} ({status})."
        )
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise NotFetched(
            f"{_host(url)} sends the file as {encoding[:20]!r}, which was not requested."
        )


def _retry_after(response: httpx2.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0


def _host(url: str) -> str:
    return "/".join(shown(url).split("/", 3)[:3])


def _said(error: Exception) -> str:
    """Return the message of a library's error on one line, without secrets."""
    return without_secrets(str(error).split("\n", 1)[0][:200]) or type(error).__name__


def _netrc(httpx: object) -> httpx2.NetRCAuth | None:
    """Return the passwords in ``NETRC`` or ``~/.netrc``; None if there is no such file."""
    path = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    if not path.is_file():
        return None
    try:
        auth: httpx2.NetRCAuth = httpx.NetRCAuth(str(path))  # type: ignore[attr-defined]
    except (NetrcParseError, OSError) as error:
        # The error message of the parser may quote a line with a password, so it is not shown.
        raise DatasetError(f"{path} cannot be read ({type(error).__name__}).") from error
    return auth


PATIENCE_S = 3.0


class Probe:
    """A quick test whether a web server answers; libraries would retry for a minute or longer.

    The constructor sends one request in a thread.

    Parameters
    ----------
    url : http:// or https://; proxies come from the environment.
    seconds : timeout for name lookup, connection and answer together.
    """

    def __init__(self, url: str, seconds: float = PATIENCE_S) -> None:
        self.url = url
        self._ends = time.monotonic() + seconds
        self._status: int | None = None
        # The name lookup of the system has no timeout. A hanging thread is abandoned.
        self._thread = threading.Thread(target=self._ask, args=(seconds,), daemon=True)
        self._thread.start()

    def answers(self) -> bool:
        """Wait for the answer; return True if its status is below 500."""
        self._thread.join(max(0.0, self._ends - time.monotonic()))
        return self._status is not None and self._status < 500

    def _ask(self, seconds: float) -> None:
        try:
            with urlopen(Request(self.url, method="HEAD"), timeout=seconds) as answer:  # noqa: S310 - an address of the user's own
                self._status = answer.status
        except HTTPError as error:
            self._status = error.code
        except (OSError, ValueError):
            self._status = None
