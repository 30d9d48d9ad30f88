"""The caller of a request, and the limits of its key."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address, ip_network

from limits import RateLimitItem

from service.access.keys import ApiKey, KeyScope
from service.settings import parse_rate


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """The galleries and quotas of a key; see `ApiKey`."""

    galleries: tuple[str, ...] | None = None
    searches: RateLimitItem | None = None
    max_items: int | None = None
    max_galleries: int | None = None

    @classmethod
    def of(cls, key: ApiKey) -> KeyLimits:
        """Return the galleries that a key allows, and the quotas of the key."""
        searches = None if key.searches is None else parse_rate(key.searches)
        return cls(key.galleries, searches, key.max_items, key.max_galleries)

    def sees(self, gallery: str) -> bool:
        """Return whether the key allows the gallery with this name."""
        if self.galleries is None:
            return True
        return any(fnmatchcase(gallery, pattern) for pattern in self.galleries)


NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request.

    Attributes
    ----------
    id : id of the key, or the address of a caller without a key.
    account : name under which requests are counted; a key and an address never share a name.
    name : name of the key; None without a key.
    scope : what the caller may do.
    rate : rate limit of its requests; None for no limit.
    expected_absent : share of the caller's queries without a match in a gallery; None if the key
        sets no share.
    limits : the galleries and quotas of the key.
    """

    id: str
    account: str
    name: str | None
    scope: KeyScope
    rate: RateLimitItem | None
    expected_absent: float | None = None
    limits: KeyLimits = NO_LIMITS

    @property
    def stream(self) -> str:
        """Return the name of the caller in the drift test.

        For a caller with a key, the name is made from the key. For other callers, it is made from
        the IPv4 address, or from the /64 network of the IPv6 address.
        """
        if self.name is not None:
            return self.account
        network = _network_of(self.id)
        return self.account if network is None else account_of_address(network)

    def sees(self, gallery: str) -> bool:
        """Return whether the caller can see the gallery with this name."""
        return self.limits.sees(gallery)


@lru_cache(maxsize=1024)  # one call in each request, mostly with the same addresses
def _network_of(text: str) -> str | None:
    """Return the IPv4 address or the IPv6 /64 network of an address; None for other texts."""
    try:
        address = ip_address(text)
    except ValueError:
        return None  # of a Unix socket
    return str(ip_network((address, 64), strict=False) if address.version == 6 else address)


def account_of_key(key_id: str) -> str:
    """Return the name under which the requests of a key are counted."""
    return f"key {key_id}"


def account_of_address(address: str) -> str:
    """Return the name under which the requests of an address are counted."""
    return f"address {address}"
