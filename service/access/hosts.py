"""Host names of the service: protection against DNS rebinding by pages of other sites.

A browser lets a page send requests to the host that it came from. An attacker who owns the host's
name can then point it to 127.0.0.1 (DNS rebinding). For the browser, page and service now have one
origin. The header Host still has the attacker's name, so the service checks this header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from model_store.errors import InvalidHead, MisdirectedRequest

_HOST = re.compile(rb"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[\w.-]{1,255}))(?::\d{0,5})?")


PROBES = {"/livez", "/readyz"}
"""Paths that kubelets and load balancers request by the container's address."""

METRICS = "/metrics"
"""Path that Prometheus requests by the address of each replica. An address cannot be a rebound
name."""


class AllowedHosts:
    """Refuses requests for a host name that is not the service's; probes are allowed.

    Parameters
    ----------
    names : names of the service, in addition to this machine's; ``*.shop.example`` for all
        subdomains. None or ``*``: any.

    Raises
    ------
    InvalidHead : there is no header Host, or not one.
    MisdirectedRequest : the name is not one of the service's.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str] | None) -> None:
        self._app = app
        self._names = None if names is None or "*" in names else {_bare(name) for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http":
            name = _host_of(scope)
            path = scope["path"]
            if path not in PROBES and not (path == METRICS and _is_address(name)):
                self._check(name)
        await self._app(scope, receive, send)

    def _check(self, name: str | None) -> None:
        if self._names is None or name is None or is_loopback(name) or name in self._names:
            return
        parents = name.split(".")[1:]
        if any("*." + ".".join(parents[n:]) in self._names for n in range(len(parents))):
            return
        raise MisdirectedRequest(
            f"This service does not go by the name {name[:100]!r}. Ask it as localhost or "
            "127.0.0.1, or name the host in VOUCH_ALLOWED_HOSTS."
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``; False for all names except localhost."""
    name = _bare(host)
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: never resolved by DNS
        return True
    try:
        return ip_of(name).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=1024)  # called four times a request, mostly for the same few clients
def ip_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address; an IPv4 address in IPv6 form becomes IPv4."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _is_address(name: str | None) -> bool:
    try:
        ip_of(_bare(name or ""))
    except ValueError:
        return False
    return True


def _bare(name: str) -> str:
    return name.lower().strip("[]").removesuffix(".")


def _host_of(scope: Scope) -> str | None:
    """Return the name in the header Host; None for HTTP/1.0 without Host, which no browser uses."""
    sent = [value for name, value in scope["headers"] if name == b"host"]
    if not sent and scope.get("http_version", "1.1") == "1.0":
        return None
    found = _HOST.fullmatch(sent[0].strip()) if len(sent) == 1 else None
    if found is None:
        raise InvalidHead(
            f"The request has {len(sent)} headers Host, or an invalid one. Send one host, "
            "such as `Host: 127.0.0.1:8080`."
        )
    return _bare((found["v6"] or found["name"]).decode("ascii"))
