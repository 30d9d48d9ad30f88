"""The caller behind a proxy."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

_FORWARDING = {
    *(b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"client-ip"),
    *(b"true-client-ip", b"cf-connecting-ip", b"cf-connecting-ipv6", b"fastly-client-ip"),
    *(b"x-remote-ip", b"x-remote-addr", b"x-proxyuser-ip", b"cdn-loop", b"x-amzn-trace-id"),
}
_FORWARDING_PREFIXES = (b"x-forwarded-", b"x-original-", b"x-envoy-", b"x-azure-", b"x-appengine-")
"""Headers that a request has if a proxy passed it on, and that a client may send as it likes."""


class KnownProxies:
    """Believes named proxies what they say of who asks, and nobody else.

    Parameters
    ----------
    trusted : addresses and networks of proxies; ``*``: whoever connects.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[str]) -> None:
        believing: ASGIApp = ProxyHeadersMiddleware(app, [*trusted])  # type: ignore[arg-type, assignment]
        self._app = believing if trusted else app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http":
            scope.setdefault("state", {})["connected"] = scope.get("client")
        await self._app(scope, receive, send)


def is_forwarding(name: bytes) -> bool:
    """Return whether a header, in lower case, is one that proxies add."""
    return name in _FORWARDING or name.startswith(_FORWARDING_PREFIXES)


def is_forwarded_by_a_stranger(request: Request) -> bool:
    """Return whether the request was passed on by a proxy that is not trusted."""
    if not any(map(is_forwarding, (name for name, _ in request.scope["headers"]))):
        return False
    return request.scope.get("client") == getattr(request.state, "connected", None)
