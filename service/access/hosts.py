"""Host names of the service, and the caller and path prefix behind a proxy.

A browser lets a page send requests to the host that the page came from. An attacker who owns the
host name can later point the name to 127.0.0.1 (DNS rebinding). The attacker's page can then send
requests to the service. The header Host still has the attacker's name, so the service checks Host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from model_store.errors import InvalidHead, MisdirectedRequest
from service.settings import EVERY, read_prefix

_MAX_HOST_BYTES = 512
"""Maximum bytes of a header Host, with white space; a name has at most 255 bytes."""

_HOST = re.compile(rb"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[\w.-]{1,255}))(?::\d{0,5})?")


PROBES = {"/livez", "/readyz"}
"""Paths that kubelets and load balancers request by the container's address."""

METRICS = "/metrics"
"""Path that Prometheus requests by the IP address of each replica. DNS rebinding needs a host name,
so an IP address is safe."""


class AllowedHosts:
    """Refuses requests for a host name that is not a name of the service; allows health checks.

    Parameters
    ----------
    names : host names of the service; the names of this machine are always allowed.
        ``*.shop.example`` allows all subdomains. If None or ``*``, every name is allowed.
    """

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None or "*" in names else {_bare(name) for name in names}

    def check(self, scope: Scope) -> None:
        """Check the header Host of a request.

        Raises
        ------
        InvalidHead : the header is missing, repeated or malformed.
        MisdirectedRequest : the host name in the request is not a name of the service.
        """
        sent = [value for name, value in scope["headers"] if name == b"host"]
        if not sent and scope.get("http_version", "1.1") == "1.0":
            return  # no browser sends such a request
        usable = len(sent) == 1 and len(sent[0]) <= _MAX_HOST_BYTES
        name = _name_in(sent[0]) if usable else None
        if name is None:
            raise InvalidHead(
                f"The header Host is missing, repeated or invalid ({len(sent)} received). Send one "
                "host, such as `Host: 127.0.0.1:8080`."
            )
        if self._names is None or is_loopback(name) or name in self._names:
            return
        path = scope["path"]
        if path in PROBES or (path == METRICS and _is_address(name)):
            return
        parents = name.split(".")[1:]
        if any("*." + ".".join(parents[n:]) in self._names for n in range(len(parents))):
            return
        raise MisdirectedRequest(
            f"{name[:100]!r} is not a host name of this service. Use localhost or 127.0.0.1, or "
            "add the name to VOUCH_ALLOWED_HOSTS."
        )


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``; False for all names except localhost."""
    name = _bare(host)
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: never resolved by DNS
        return True
    try:
        return ip_of(name).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)  # each request, mostly with the same addresses
def ip_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address; an IPv4 address in IPv6 form becomes IPv4."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_address(name: str) -> bool:
    try:
        ip_of(_bare(name))
    except ValueError:
        return False
    return True


def _bare(name: str) -> str:
    return name.lower().strip("[]").removesuffix(".")


@lru_cache(maxsize=1024)
def _name_in(host: bytes) -> str | None:
    """Return the name in a header Host; None if the header is malformed."""
    found = _HOST.fullmatch(host.strip())
    return None if found is None else _bare((found["v6"] or found["name"]).decode("ascii"))


_FORWARDING = {
    *(b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"x-cluster-client-ip", b"client-ip"),
    *(b"true-client-ip", b"cf-connecting-ip", b"cf-connecting-ipv6", b"fastly-client-ip"),
    *(b"x-remote-ip", b"x-remote-addr", b"x-proxyuser-ip", b"cdn-loop", b"x-amzn-trace-id"),
}
_FORWARDING_PREFIXES = (b"x-forwarded-", b"x-original-", b"x-envoy-", b"x-azure-", b"x-appengine-")
"""Headers that proxies add; clients can forge them."""

_OF_CLIENTS = {
    *(b"host", b"user-agent", b"accept", b"accept-encoding", b"accept-language", b"connection"),
    *(b"content-type", b"content-length", b"authorization", b"x-api-key", b"origin", b"referer"),
}
"""Usual headers that no proxy adds."""

root_path: ContextVar[str] = ContextVar("root_path", default="")
"""Path prefix of the service for clients, such as ``/vouch``; empty at the root."""


class KnownProxies:
    """Applies the forwarded headers of trusted proxies; ignores the headers of other senders.

    Sets the client's address and scheme. Sets ``root_path`` to the value of ``X-Forwarded-Prefix``.
    If ``path`` still has the prefix, `KnownProxies` removes the prefix for the layers inside.
    `service.http.routing.Routes`, the innermost layer, adds the prefix again.

    Parameters
    ----------
    trusted : addresses and networks of trusted proxies; ``*`` trusts every client.
    prefix : root path of requests without ``X-Forwarded-Prefix``.
    """

    def __init__(self, app: ASGIApp, trusted: Sequence[str], prefix: str = "") -> None:
        self._app, self._prefix = app, prefix
        known = [EVERY] if EVERY in trusted else [*trusted]
        self._proxied = ProxyHeadersMiddleware(app, known) if trusted else None  # type: ignore[arg-type]

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
        if prefix or not scope["path"]:
            scope["path"] = _without(prefix, scope["path"])
        root_path.set(prefix)
        await app(scope, receive, send)


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


def is_forwarded_by_an_untrusted_address(request: Request) -> bool:
    """Return whether a proxy that is not trusted has forwarded the request."""
    scope = request.scope
    names = {name for name, _ in scope["headers"]}
    if names <= _OF_CLIENTS or not any(map(is_forwarding, names)):
        return False
    return bool(scope.get("client") == scope.get("state", {}).get("connected"))
