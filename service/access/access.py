"""Access control: the key of a request, its scope and its rate limit.

A route or a whole router names the required scope::

    router = APIRouter(route_class=GuardedRoute, dependencies=[Depends(requires("read"))])

    @router.post("/activate", dependencies=[Depends(requires("admin"))])

The OpenAPI document of the route then shows how to send a key, and the errors 401, 403 and 429.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response, params
from fastapi.routing import APIRoute
from limits import RateLimitItem
from starlette.datastructures import Headers
from starlette.types import Scope

from model_store.bundles.galleries import gallery_not_found
from model_store.errors import (
    Forbidden,
    KeysRequired,
    RateLimited,
    SearchesUsedUp,
    Unauthenticated,
)
from service.access.hosts import ip_of, is_forwarded_by_an_untrusted_address, is_loopback
from service.access.keys import SCOPES, ApiKey, Keyring, KeyScope, allows
from service.access.rate_limits import Rates, Standing
from service.settings import Settings, parse_rate

_KEYLESS = (
    "programs on this machine have the scope admin without a key; clients of a proxy on this "
    "machine have this scope too if the proxy adds no forwarded headers: set VOUCH_KEYS "
    "behind a proxy"
)

SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A key of `vouch-keys`: `vouch_…`.",
    },
    "api_key": {
        "type": "apiKey",
        "in": "header",
        "name": "X-API-Key",
        "description": "The same key.",
    },
}
"""The two ways to send a key, for the OpenAPI document."""


_OF_THIS_MACHINE = (
    "This service has no keys, so it accepts programs on its own machine only. The request comes "
    "from another machine or through a proxy. Ask the service's operator to create keys with "
    "`vouch-keys create`."
)

_SEND_A_KEY = (
    "Send a valid key as `Authorization: Bearer vouch_…` or as `X-API-Key`; the service's operator "
    "creates keys with `vouch-keys create`."
)


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
    stream : name of the caller in the drift test. For a caller with a key, the name is made from
        the key. For other callers, it is made from the IPv4 address, or from the /64 network of the
        IPv6 address.
    """

    id: str
    account: str
    name: str | None
    scope: KeyScope
    rate: RateLimitItem | None
    expected_absent: float | None = None
    limits: KeyLimits = NO_LIMITS
    stream: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        network = None if self.name is not None else _network_of(self.id)
        stream = self.account if network is None else account_of_address(network)
        object.__setattr__(self, "stream", stream)


def _network_of(text: str) -> str | None:
    """Return the IPv4 address or the IPv6 /64 network of an address; None for other texts."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None  # of a Unix socket
    return str(
        ipaddress.ip_network((address, 64), strict=False) if address.version == 6 else address
    )


@lru_cache(maxsize=1024)  # one call in each request, mostly with the same addresses
def _caller_without_key(host: str, scope: KeyScope, rate: RateLimitItem | None) -> Caller:
    address = _address_of(host)
    return Caller(address, account_of_address(address), None, scope, rate)


def account_of_key(key_id: str) -> str:
    """Return the name under which the requests of a key are counted."""
    return f"key {key_id}"


def account_of_address(address: str) -> str:
    """Return the name under which the requests of an address are counted."""
    return f"address {address}"


@lru_cache(maxsize=1024)  # one call in each request, mostly with the same addresses
def _account_of_host(host: str) -> str:
    return account_of_address(_address_of(host))


def _address_of(host: str) -> str:
    """Return the IPv4 address or the IPv6 /64 network that identifies a caller without a key.

    A host can use any of the 2⁶⁴ addresses of its IPv6 network, so the network counts as one
    caller.
    """
    try:
        address = ip_of(host)
    except ValueError:
        return "unknown"  # not an address: some proxies send a name
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False).network_address)


def _host_of(scope: Scope) -> str:
    """Return the address from which a request comes; empty for a Unix socket."""
    client = scope.get("client")
    return client[0] if client else ""


class Access:
    """Identifies callers, and checks their scopes and limits.

    Parameters
    ----------
    keyring : the keys; None for a service without keys.
    keyless : scope of callers without a key; if None, these callers are refused.
    rates : the rate limiter.
    rate : default rate limit of a caller; None for no limit.
    origins : web origins whose pages may send writes.
    elsewhere : scope of callers without a key on other machines; used only with ``local_only``.
    local_only : whether only programs on this machine get the scope ``keyless``.
    """

    def __init__(
        self,
        keyring: Keyring | None,
        keyless: KeyScope | None,
        rates: Rates,
        rate: RateLimitItem | None,
        origins: tuple[str, ...],
        *,
        elsewhere: KeyScope | None,
        local_only: bool,
    ) -> None:
        self._keyring = keyring
        self.keyless = keyless
        self.rates = rates
        self._rate = rate
        self._origins = origins
        self._elsewhere = elsewhere
        self._local_only = local_only

    def account_of(self, scope: Scope) -> str:
        """Return the name under which a request is counted; only headers are read."""
        if self._keyring is not None:
            presented = _presented_key(scope)
            if presented is not None:
                with suppress(Unauthenticated):
                    return account_of_key(self._keyring.find(presented).id)
        return _account_of_host(_host_of(scope))

    @property
    def summary(self) -> str:
        """Return a text for the log that states which callers may send requests."""
        if self.keyless == "admin":
            return _KEYLESS
        others = "no access" if self.keyless is None else f"anyone, with the scope {self.keyless}"
        return others if self._keyring is None else f"keys; without a key {others}"

    async def admit(self, request: Request) -> Caller:
        """Count the request once against the caller's rate limit, and return the caller.

        Raises
        ------
        Unauthenticated : a required key is missing or invalid.
        RateLimited : the caller has reached its rate limit.
        """
        state = request.scope["state"]
        known: Caller | None = state.get("caller")
        if known is not None:
            return known
        headers: dict[str, str] = state["answer_headers"]
        if self._keyring is not None:  # a shared HTTP cache must not mix callers
            headers |= {"Cache-Control": "no-store", "Vary": "Authorization, X-API-Key"}
        try:
            caller = state["caller"] = self._caller(request)
        except Unauthenticated:
            await self._count_invalid_key(request)
            raise
        if caller.rate is not None:
            standing = await self.rates.count(caller.account, caller.rate)
            headers |= standing.headers()
            if standing.exceeded:
                raise RateLimited(
                    f"More than {caller.rate.amount} requests within {caller.rate.get_expiry()} s; "
                    f"wait {headers['Retry-After']} s."
                )
        return caller

    async def _count_invalid_key(self, request: Request) -> None:
        """Count an invalid key against the client's address."""
        if self._rate is not None and _presented_key(request.scope) is not None:
            account = _account_of_host(_host_of(request.scope))
            standing = await self.rates.count(account, self._rate)
            if standing.exceeded:
                request.state.answer_headers |= standing.headers()
                raise RateLimited("Too many invalid keys were sent.") from None

    def check(self, request: Request, caller: Caller, scope: KeyScope) -> None:
        """Check that the caller's scope allows the request.

        Raises
        ------
        Unauthenticated, Forbidden : the message names the required scope.
        """
        includes = allows(caller.scope, scope)
        if caller.name is None:
            if not includes:
                raise self._challenge(
                    request, f"A key with the scope {scope} is needed. {_SEND_A_KEY}"
                )
            if scope != "read":
                self._refuse_foreign_page(request)
        elif not includes:
            raise Forbidden(
                f"The key {caller.id} has the scope {caller.scope}; {request.method} "
                f"{request.url.path} needs {scope}. Ask the operator for a key with this scope."
            )

    async def count_searches(self, request: Request, n: int = 1) -> Standing | None:
        """Count searches against the key's quota; failed searches count too.

        Returns the state of the quota; None without a quota. With ``n`` = 0 nothing
        is counted. If fewer than ``n`` searches are left, none is counted, unless another request
        counts at the same time.

        Raises
        ------
        SearchesUsedUp
        """
        caller: Caller = request.scope["state"]["caller"]
        rate = caller.limits.searches
        if rate is None:
            return None
        account = f"searches of {caller.account}"
        if n > 1:
            standing = await self.rates.count(account, rate, 0)
            left = rate.amount - standing.count
            if left < n:
                state = f"{max(left, 0):,} are left for {n:,} further searches of this batch"
                raise self._used_up(request, standing, rate, state)
        standing = await self.rates.count(account, rate, n)
        if n and standing.exceeded:
            raise self._used_up(request, standing, rate, "all are used")
        return standing

    def _used_up(
        self, request: Request, standing: Standing, rate: RateLimitItem, state: str
    ) -> SearchesUsedUp:
        wait = standing.headers()["RateLimit-Reset"]
        request.state.answer_headers["Retry-After"] = wait
        return SearchesUsedUp(
            f"The key {request.state.caller.id} allows {rate.amount:,} searches within "
            f"{rate.get_expiry():,} s, and {state}. The next period begins in {wait} s. The "
            "service's operator can raise this quota."
        )

    async def close(self) -> None:
        """Close connections."""
        await self.rates.close()

    def _caller(self, request: Request) -> Caller:
        """Identify a caller by its key, or by its address.

        Raises
        ------
        Unauthenticated
        """
        presented = None if self._keyring is None else _presented_key(request.scope)
        if self._keyring is None or (presented is None and self.keyless is not None):
            host = _host_of(request.scope)
            scope = self.keyless or "read"
            if self._local_only and (
                not is_loopback(host) or is_forwarded_by_an_untrusted_address(request)
            ):
                if self._elsewhere is None:
                    raise self._challenge(request, _OF_THIS_MACHINE)
                scope = self._elsewhere
            return _caller_without_key(host, scope, self._rate)
        if presented is None:
            raise self._challenge(request, f"A key is needed. {_SEND_A_KEY}")
        try:
            key = self._keyring.find(presented)
        except Unauthenticated as refused:
            raise self._challenge(request, f"{refused} {_SEND_A_KEY}") from None
        rate = self._rate if key.rate_limit is None else parse_rate(key.rate_limit)
        account = account_of_key(key.id)
        limits = KeyLimits.of(key)
        return Caller(key.id, account, key.name, key.scope, rate, key.expected_absent, limits)

    def _challenge(self, request: Request, why: str) -> Unauthenticated:
        request.state.answer_headers["WWW-Authenticate"] = "Bearer"
        return Unauthenticated(why)

    def _refuse_foreign_page(self, request: Request) -> None:
        """Refuse a write that a web page of another origin sends through a visitor's browser.

        Through the browser, such a page can reach a service on the visitor's own machine. If the
        service requires a key, such a write fails anyway, because the page has no key.
        """
        origin = request.headers.get("origin")
        if origin is None or origin in self._origins:
            return
        if urlsplit(origin).netloc != request.url.netloc:
            raise Forbidden(
                f"A page of {origin} may not do this without a key. Send a key, or add the "
                "origin to VOUCH_CORS_ORIGINS."
            )


Check = Callable[[Request], Coroutine[Any, Any, None]]


def _check_of(scope: KeyScope) -> Check:
    async def check(request: Request) -> None:
        access: Access = request.app.state.access
        access.check(request, await access.admit(request), scope)

    return check


CHECKS = {scope: _check_of(scope) for scope in SCOPES}


async def counts_as_search(request: Request) -> None:
    """A dependency of a `GuardedRoute`: count the request against the search quota of its key."""
    access: Access = request.app.state.access
    await access.count_searches(request)


def requires(scope: KeyScope) -> Check:
    """Return a dependency for a `GuardedRoute` or a router: it requires ``scope`` from callers."""
    return CHECKS[scope]


class GuardedRoute(APIRoute):
    """A route that checks the caller before it reads the request's body.

    FastAPI reads the body before it checks dependencies: a caller without a key could then upload
    any amount of data. This route therefore runs the check of `requires` before it reads the body.

    Attributes
    ----------
    scopes : the scopes that callers need, from the weakest to the strongest. With scopes, the route
        raises `GalleryNotFound` for a gallery that the caller's key does not allow.
    is_search : whether a request counts against the search quota of its key.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        dependencies: Sequence[params.Depends] | None = None,
        openapi_extra: dict[str, Any] | None = None,
        **options: Any,  # noqa: ANN401 - as `APIRoute` takes them
    ) -> None:
        checks = {dependency.dependency for dependency in dependencies or ()}
        scopes = [scope for scope, check in CHECKS.items() if check in checks]
        self.scopes = tuple(scopes)
        self.is_search = counts_as_search in checks
        security = [{name: scopes[-1:]} for name in SECURITY_SCHEMES]
        super().__init__(
            path,
            endpoint,
            dependencies=[
                each
                for each in dependencies or ()
                if each.dependency not in (*CHECKS.values(), counts_as_search)
            ],
            openapi_extra=({"security": security} if scopes else {}) | (openapi_extra or {}),
            **options,
        )

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's handler; it first checks the caller."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            await self.check_caller(request)
            return await handle(request)

        return guarded

    async def check_caller(self, request: Request) -> None:
        """Check the scopes, the gallery and the search quota of the caller's key."""
        access: Access = request.app.state.access
        if self.scopes:
            caller = await access.admit(request)
            for scope in self.scopes:
                access.check(request, caller, scope)
            gallery = request.path_params.get("gallery")
            if gallery is not None and not caller.limits.sees(gallery):
                raise gallery_not_found(gallery)  # as for a missing gallery
        if self.is_search:
            await access.count_searches(request)


def open_access(settings: Settings) -> Access:
    """Create the access control that the settings describe.

    Raises
    ------
    KeysRequired : the service has no keys, other machines could reach it, and `anonymous` is not
        set.
    KeysError : the file of keys cannot be used.
    """
    host = settings.published_host or settings.host
    keyring = None if settings.keys is None else Keyring(settings.keys)
    keyless: KeyScope | None = "write" if settings.anonymous else None
    if keyring is None and is_loopback(host):
        keyless = "admin"
    if keyring is None and keyless is None:
        raise KeysRequired(
            f"Other machines could reach this service at {host} without an API key. "
            "Make keys (vouch-keys create) and set VOUCH_KEYS to their file, or listen on "
            "127.0.0.1, or set VOUCH_ANONYMOUS=true to allow requests without a key."
        )
    url = None if settings.redis_url is None else settings.redis_url.get_secret_value()
    rates = Rates(url, settings.redis_timeout_s)
    rate = None if settings.rate_limit is None else parse_rate(settings.rate_limit)
    return Access(
        keyring,
        keyless,
        rates,
        rate,
        settings.cors_origins,
        elsewhere="write" if settings.anonymous else None,
        # In a container with a published port, all clients seem to be on other machines.
        local_only=keyless == "admin" and settings.published_host is None,
    )


def _presented_key(scope: Scope) -> str | None:
    """Return the key after ``Bearer``, else the key in `X-API-Key`; other schemes are ignored."""
    headers = Headers(scope=scope)
    scheme, _, sent = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return sent.strip()
    return headers.get("x-api-key")
