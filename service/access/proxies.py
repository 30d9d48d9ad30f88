"""The caller behind a proxy, and the path prefix that the proxy removes."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.access.hosts import ip_of
from service.settings import read_prefix

_FORWARDING = {
    *(b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"client-ip"),
    *(b"true-client-ip", b"cf-connecting-ip", b"cf-connecting-ipv6", b"fastly-client-ip"),
    *(b"x-remote-ip", b"x-remote-addr", b"x-proxyuser-ip", b"cdn-loop", b"x-amzn-trace-id"),
}
_FORWARDING_PREFIXES = (b"x-forwarded-", b"x-original-", b"x-envoy-", b"x-azure-", b"x-appengine-")
"""Headers that proxies add; clients can forge them."""

root_path: ContextVar[str] = ContextVar("root_path", default="")
"""Path prefix of the service for clients, such as ``/vouch``; empty at the root."""


class KnownProxies:
    """Applies the forwarded headers of trusted proxies; ignores the headers of other senders.

    Sets the client's address and scheme. Sets ``root_path`` to the value of ``X-Forwarded-Prefix``.
    If ``path`` still has the prefix, `KnownProxies` removes the prefix for the layers inside.
    `WithinRootPath`, the innermost layer, adds the prefix again.

    Parameters
    ----------
    trusted : addresses and networks of trusted proxies; ``*`` trusts every client.
    prefix : root path of requests without ``X-Forwarded-Prefix``.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[str], prefix: str = "") -> None:
        self._app, self._prefix = app, prefix
        self._proxied = ProxyHeadersMiddleware(app, [*trusted]) if trusted else None  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        if client is not None and client[0].startswith("::ffff:"):  # IPv4 on a socket for both
            client = scope["client"] = (str(ip_of(client[0])), *client[1:])
        scope.setdefault("state", {})["connected"] = client
        prefix, app = self._prefix, self._app
        if self._proxied is not None:
            app = self._proxied  # type: ignore[assignment]
            if (client[0] if client else None) in self._proxied.trusted_hosts:
                prefix = _forwarded_prefix(scope) or prefix
        scope["root_path"] = prefix
        scope["path"] = _without(prefix, scope["path"])
        root_path.set(prefix)
        await app(scope, receive, send)


class WithinRootPath:
    """Adds the root path to ``path``, as ASGI requires."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http":
            scope["path"] = scope.get("root_path", "") + scope["path"]
        await self._app(scope, receive, send)


def _forwarded_prefix(scope: Scope) -> str:
    """Return the prefixes of all proxies, outermost first; empty if the header is not a path."""
    sent = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-prefix")
    parts = [part.strip() for part in sent.decode("latin-1").split(",")]
    try:
        return read_prefix("".join(part.rstrip("/") for part in parts))
    except ValueError:
        return ""


def _without(prefix: str, path: str) -> str:
    if path == prefix or path.startswith(f"{prefix}/"):
        return path[len(prefix) :] or "/"
    return path


def is_forwarding(name: bytes) -> bool:
    """Return whether proxies add this header (name in lower case)."""
    return name in _FORWARDING or name.startswith(_FORWARDING_PREFIXES)


def is_forwarded_by_a_stranger(request: Request) -> bool:
    """Return whether a proxy that is not trusted has forwarded the request."""
    if not any(map(is_forwarding, (name for name, _ in request.scope["headers"]))):
        return False
    return request.scope.get("client") == getattr(request.state, "connected", None)
