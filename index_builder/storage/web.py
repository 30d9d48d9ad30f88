"""Reads files from web servers."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from netrc import NetrcParseError
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import getproxies

from index_builder.storage.source import NotFetched, Opened, TryAgain
from index_builder.storage.trust import Guard, Trust, guarded
from index_builder.storage.urls import WEB, shown, without_secrets
from model_store.errors import DatasetError
from model_store.installation import DISTRIBUTION, how_to_install, installed_version

if TYPE_CHECKING:
    import httpx2

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
