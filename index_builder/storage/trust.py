"""Trust: which servers get credentials, and which IP addresses a data source may use.

The operator names a data source on the command line. The source can contain further addresses,
for example of an image in a table, of a page of a IIIF manifest, or of a redirect. A third party
has chosen the addresses in the source, so Vouch does not trust these addresses.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from index_builder.storage.urls import BUCKETS, WEB, in_bucket, scheme_of, shown
from model_store.errors import ConfigError, DatasetError
from model_store.lists import split_list

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
