"""Who may ask, as a client meets it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import httpx2
import pytest
from fastapi import APIRouter, Depends, FastAPI
from pydantic import SecretStr
from redis.asyncio import ConnectionPool
from starlette.testclient import TestClient

from model_store.bundles.bundle import open_bundle
from model_store.errors import KeysError, KeysRequired
from service.access.access import (
    SECURITY_SCHEMES,
    GuardedRoute,
    KeyLimits,
    account_of_address,
    account_of_key,
    counts_as_search,
    open_access,
    requires,
)
from service.access.hosts import is_loopback
from service.access.keys import SCOPES, KeyScope, revoked
from service.app import create_api
from service.http.middleware import RequestContext
from service.http.problems import add_problem_handlers
from service.http.routes import ROUTERS
from service.observability.metrics import Telemetry
from service.settings import Settings
from tests.end_to_end.keys import KeysFile, bearer, id_of, secret_of
from tests.end_to_end.questions import search, search_by_stream
from tests.support.local_client import LocalClient

StartClient = Callable[..., TestClient]

HOUR = timedelta(hours=1)
SHOP, STRANGER = "https://shop.example", "https://evil.example"

OPEN = {
    "/",
    "/livez",
    "/readyz",
    "/docs",
    "/docs/oauth2-redirect",
    "/openapi.json",
    "/page",
    "/static-offline-docs",
}
"""What anyone may have: nothing of a gallery."""

REVIEWS = {
    ("POST", "/v1/galleries/{gallery}/feedback"),
    ("GET", "/v1/galleries/{gallery}/feedback"),
    ("DELETE", "/v1/galleries/{gallery}/feedback/{number}"),
    ("GET", "/v1/galleries/{gallery}/review"),
    ("GET", "/v1/galleries/{gallery}/review/summary"),
    ("POST", "/v1/galleries/{gallery}/review/leases"),
    ("GET", "/v1/galleries/{gallery}/review/export"),
    ("POST", "/v1/galleries/{gallery}/review/import"),
    ("GET", "/v1/galleries/{gallery}/review/{query_id:case}"),
    ("GET", "/v1/galleries/{gallery}/review/{query_id}/image"),
    ("DELETE", "/v1/galleries/{gallery}/review/{query_id}/lease"),
    ("GET", "/v1/galleries/{gallery}/unknown"),
}
WRITES = {
    ("DELETE", "/v1/galleries/{gallery}/review/{query_id:case}"),
    ("POST", "/v1/galleries/{gallery}/unknown/{group}/enrol"),
    ("POST", "/v1/galleries/{gallery}/items"),
    ("PUT", "/v1/galleries/{gallery}/items/{item_id:item}"),
    ("PATCH", "/v1/galleries/{gallery}/items/{item_id:item}"),
    ("DELETE", "/v1/galleries/{gallery}/items/{item_id:item}"),
}
ADMINISTERS = {
    ("POST", "/v1/galleries"),
    ("PATCH", "/v1/galleries/{gallery}"),
    ("DELETE", "/v1/galleries/{gallery}"),
    ("POST", "/v1/galleries/{gallery}/rename"),
    ("POST", "/v1/galleries/{gallery}/bundles/{bundle_id}/activate"),
    ("POST", "/v1/galleries/{gallery}/bundles/rollback"),
    ("POST", "/v1/galleries/{gallery}/compact"),
    *(
        (method, "/v1/galleries/{gallery}/calibration/absent-share")
        for method in ("POST", "DELETE")
    ),
    ("POST", "/v1/galleries/{gallery}/calibration"),
    ("POST", "/v1/galleries/{gallery}/calibration/acknowledge"),
    *((method, "/v1/galleries/{gallery}/shadow") for method in ("PUT", "GET", "DELETE")),
}


def routes_of(router: Any) -> Iterator[Any]:
    """Every route, those of included routers too, whichever way FastAPI includes them."""
    for route in router.routes:
        included = getattr(route, "original_router", None)
        yield from [route] if included is None else routes_of(included)


@pytest.fixture
def api() -> FastAPI:
    settings = Settings()
    return create_api(settings, [], Telemetry(), open_access(settings), open_bundle)


class TestEveryRoute:
    def test_needs_a_scope_or_is_known_to_be_open(self, api: FastAPI) -> None:
        paths, doors = set(), set()
        for route in routes_of(api):
            paths.add(route.path)
            doors |= {(method, route.path) for method in getattr(route, "methods", None) or ()}
            assert bool(getattr(route, "scopes", ())) is (route.path not in OPEN), route.path
        assert paths > OPEN
        assert doors > WRITES | ADMINISTERS

    def test_is_guarded_before_it_reads_a_body(self, api: FastAPI) -> None:
        for route in routes_of(api):
            if route.path not in OPEN:
                assert isinstance(route, GuardedRoute), route.path

    def test_is_the_one_that_its_room_made(self, api: FastAPI) -> None:
        """Making all of them once more, for one application, takes longer than a search."""
        served = {id(route) for route in api.routes}
        assert all(id(route) in served for router in ROUTERS for route in router.routes)

    def test_answers_every_scope_as_it_should(
        self, api: FastAPI, start: StartClient, keys_file: KeysFile
    ) -> None:
        keys = {scope: keys_file.make(scope) for scope in SCOPES}
        client = start(keys=keys_file.path)
        asked = 0
        for route in routes_of(api):
            if route.path in OPEN:
                continue
            names = ("item_id", "sample_id", "bundle_id", "number", "query_id", "group")
            ids = dict.fromkeys(names, 1)
            path = route.path_format.format(gallery="digits", **ids)
            for method in route.methods:
                wanted = "review" if (method, route.path) in REVIEWS else "read"
                wanted = "write" if (method, route.path) in WRITES else wanted
                wanted = "admin" if (method, route.path) in ADMINISTERS else wanted
                assert client.request(method, path).status_code == 401, path
                for scope, text in keys.items():
                    status = client.request(method, path, headers=bearer(text)).status_code
                    allowed = SCOPES.index(scope) >= SCOPES.index(wanted)
                    assert (status not in {401, 403}) is allowed, (method, path, scope)
                    assert allowed or status == 403
                    asked += 1
        assert asked >= 30

    @pytest.mark.parametrize("path", sorted(OPEN - {"/page", "/static-offline-docs"}))
    def test_that_is_open_stays_so(
        self, start: StartClient, keys_file: KeysFile, path: str
    ) -> None:
        client = start(keys=keys_file.path, rate_limit="1/day")
        for _ in range(3):
            response = client.get(path)
            assert response.status_code == 200
        assert "ratelimit-limit" not in response.headers


class TestAKey:
    @pytest.fixture
    def client(self, start: StartClient, keys_file: KeysFile) -> TestClient:
        return start(keys=keys_file.path)

    @pytest.mark.parametrize(
        "headers",
        [
            lambda text: {"Authorization": f"Bearer {text}"},
            lambda text: {"Authorization": f"bearer   {text} "},
            lambda text: {"X-API-Key": text},
            lambda text: {"Authorization": "Basic cHJveHk6cHc=", "X-API-Key": text},
        ],
    )
    def test_comes_in_a_header(
        self, client: TestClient, keys_file: KeysFile, digit: bytes, headers: Any
    ) -> None:
        client.headers.update(headers(keys_file.make("read")))
        assert search(client, digit).status_code == 200

    @pytest.mark.parametrize(
        "spoil",
        [
            lambda text: {},
            lambda text: {"Authorization": text},
            lambda text: {"Authorization": f"Basic {text}"},
            lambda text: {"Authorization": "Bearer"},
            lambda text: {"Authorization": "Bearer "},
            lambda text: {"Authorization": f"Bearer {text[:-1]}"},
            lambda text: {"Authorization": f"Bearer {text} {text}"},
            lambda text: {"Authorization": "Bearer nonsense", "X-API-Key": text},
            lambda text: {"X-API-Key": f"Bearer {text}"},
            lambda text: {"X-API-Key": b"vouch_\xff\xfe"},
            lambda text: {"Cookie": f"key={text}"},
        ],
    )
    def test_that_is_none_is_refused(
        self, client: TestClient, keys_file: KeysFile, spoil: Any
    ) -> None:
        text = keys_file.make("admin")
        response = client.get("/v1/galleries", headers=spoil(text), params={"key": text})
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        problem = response.json()
        assert problem["code"] == "unauthenticated"
        assert "Authorization: Bearer" in problem["detail"]
        assert secret_of(text) not in response.text

    def test_that_ends_is_refused_from_then_on(
        self, client: TestClient, keys_file: KeysFile
    ) -> None:
        ended, expired = keys_file.make("read"), keys_file.make("read", expires=-HOUR)
        assert client.get("/v1/galleries", headers=bearer(ended)).status_code == 200
        keys_file.change(ended, revoked)
        for text, why in ((ended, "revoked"), (expired, "expired")):
            response = client.get("/v1/galleries", headers=bearer(text))
            assert response.status_code == 401
            assert f"{id_of(text)} is {why}" in response.json()["detail"]

    def test_that_may_not_is_told_what_it_would_need(
        self, client: TestClient, keys_file: KeysFile
    ) -> None:
        text = keys_file.make("read")
        response = client.post("/v1/galleries/digits/feedback", headers=bearer(text), json={})
        assert response.status_code == 403
        assert response.json()["code"] == "forbidden"
        assert "scope read" in response.json()["detail"]
        assert "needs review" in response.json()["detail"]
        assert "www-authenticate" not in response.headers

    def test_is_asked_for_before_a_body_is_read(self, client: TestClient) -> None:
        read = []

        def body() -> Iterator[bytes]:
            read.append("something")
            yield bytes(2**20)

        for headers in ({}, {"Content-Type": "application/json"}, {"Content-Type": "text/plain"}):
            response = client.post("/v1/galleries/digits/search", content=body(), headers=headers)
            assert response.status_code == 401
        assert search_by_stream(client, 10**6).status_code == 401
        assert read == []

    def test_is_not_looked_at_where_there_are_none(self, start: StartClient) -> None:
        assert start().get("/v1/galleries", headers=bearer("mine")).status_code == 200


class TestAnswersToAKey:
    def test_are_for_its_holder_alone(
        self, start: StartClient, keys_file: KeysFile, digit: bytes
    ) -> None:
        client = start(keys=keys_file.path)
        text = keys_file.make("read")
        for headers in ({}, bearer(text)):
            response = client.get("/v1/galleries", headers=headers)
            assert response.headers["cache-control"] == "no-store"
            assert {"authorization", "x-api-key"} <= vary(response)
        sample = client.get("/v1/galleries/digits/samples/1", headers=bearer(text))
        assert sample.headers["cache-control"] == "private, max-age=86400"
        assert {"authorization", "x-api-key"} <= vary(sample)

    def test_are_for_everyone_where_everyone_may_ask(self, client: TestClient) -> None:
        sample = client.get("/v1/galleries/digits/samples/1")
        assert sample.headers["cache-control"] == "public, max-age=86400"
        assert "vary" not in sample.headers

    @pytest.mark.parametrize("text", [None, "wrong"])
    def test_can_be_read_by_pages_that_may_call(
        self, start: StartClient, keys_file: KeysFile, text: str | None
    ) -> None:
        client = start(keys=keys_file.path, cors_origins=(SHOP,), rate_limit="1/day")
        client.headers["Origin"] = SHOP
        sent = keys_file.make("read") if text is None else text
        for status in (200, 429) if text is None else (401, 429):
            response = client.get("/v1/galleries", headers=bearer(sent))
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == SHOP
            exposed = response.headers["access-control-expose-headers"].split(", ")
            assert {
                "WWW-Authenticate",
                "Retry-After",
                "RateLimit-Limit",
                "RateLimit-Remaining",
                "RateLimit-Reset",
                "Link",
                "Location",
            } <= set(exposed)
            assert {"origin", "authorization"} <= vary(response)

    def test_a_browser_asks_whether_it_may_send_one_without_one(
        self, start: StartClient, keys_file: KeysFile
    ) -> None:
        response = start(keys=keys_file.path, cors_origins=(SHOP,)).options(
            "/v1/galleries/digits/search",
            headers={
                "Origin": SHOP,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization, x-api-key",
            },
        )
        assert response.status_code == 200
        allowed = response.headers["access-control-allow-headers"].lower()
        assert "authorization" in allowed
        assert "x-api-key" in allowed


def vary(response: httpx2.Response) -> set[str]:
    return set(re.split(", *", response.headers["vary"].lower()))


def administered(settings: Settings) -> TestClient:
    """An application with a route of each scope, put together as `create_app` does."""
    router = APIRouter(route_class=GuardedRoute)
    for scope in SCOPES:

        @router.post(f"/{scope}", dependencies=[Depends(requires(scope))])
        async def done() -> str:
            return "done"

    api = FastAPI()
    api.state.access = open_access(settings)
    api.include_router(router)
    add_problem_handlers(api)
    return LocalClient(RequestContext(api, Telemetry(), 1000, 1000))


class TestWithoutAKey:
    @pytest.mark.parametrize(
        ("settings", "with_keys", "allowed"),
        [
            ({}, False, [*SCOPES]),
            ({"host": "::1"}, False, [*SCOPES]),
            ({"host": "0.0.0.0", "published_host": "127.0.0.1"}, False, [*SCOPES]),
            ({"anonymous": True}, False, [*SCOPES]),
            ({"host": "0.0.0.0", "anonymous": True}, False, ["read", "review", "write"]),
            ({"anonymous": True}, True, ["read", "review", "write"]),
            ({}, True, []),
            ({"host": "0.0.0.0"}, True, []),
        ],
    )
    def test_what_one_may(
        self, keys_file: KeysFile, settings: dict[str, Any], with_keys: bool, allowed: list[str]
    ) -> None:
        keys = keys_file.path if with_keys else None
        client = administered(Settings(**settings, keys=keys))
        answers = {scope: client.post(f"/{scope}") for scope in SCOPES}
        assert [scope for scope, answer in answers.items() if answer.status_code == 200] == allowed
        for scope in set(SCOPES) - set(allowed):
            assert answers[scope].status_code == 401
            assert answers[scope].headers["www-authenticate"] == "Bearer"

    def test_a_wrong_key_is_worse_than_none(self, keys_file: KeysFile) -> None:
        client = administered(Settings(keys=keys_file.path, anonymous=True))
        assert client.post("/read").status_code == 200
        assert client.post("/read", headers=bearer("wrong")).status_code == 401

    @pytest.mark.parametrize(
        ("origin", "statuses"),
        [
            (None, [200, 200, 200, 200]),
            ("http://127.0.0.1", [200, 200, 200, 200]),
            (SHOP, [200, 200, 200, 200]),
            (STRANGER, [200, 403, 403, 403]),
            (f"{SHOP}.evil.example", [200, 403, 403, 403]),
            (f"x{SHOP}", [200, 403, 403, 403]),
            ("http://127.0.0.1.evil.example", [200, 403, 403, 403]),
            ("http://evil127.0.0.1", [200, 403, 403, 403]),
            ("null", [200, 403, 403, 403]),
        ],
    )
    def test_a_page_of_any_site_may_not_write(
        self, origin: str | None, statuses: list[int]
    ) -> None:
        client = administered(Settings(cors_origins=(SHOP,)))
        headers = {} if origin is None else {"Origin": origin}
        found = [client.post(f"/{scope}", headers=headers).status_code for scope in SCOPES]
        assert found == statuses

    def test_with_a_key_a_page_of_any_site_may(self, keys_file: KeysFile) -> None:
        client = administered(Settings(keys=keys_file.path, anonymous=True))
        headers = {"Origin": STRANGER, **bearer(keys_file.make("admin"))}
        assert client.post("/admin", headers=headers).status_code == 200


class TestWhichAccessIsOpened:
    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost"])
    def test_loopback(self, host: str) -> None:
        assert is_loopback(host)
        assert open_access(Settings(host=host)).keyless == "admin"

    @pytest.mark.parametrize(
        "host",
        [
            "0.0.0.0",
            "::",
            "[::]",
            "10.0.0.7",
            "192.168.1.1",
            "8.8.8.8",
            "localhost.example",
            "vouch",
            "",
        ],
    )
    def test_anything_else_is_public(self, host: str) -> None:
        assert not is_loopback(host)
        with pytest.raises(KeysRequired, match=r"VOUCH_KEYS.*127\.0\.0\.1.*VOUCH_ANONYMOUS=true"):
            open_access(Settings(host=host))

    def test_the_published_address_decides(self) -> None:
        assert open_access(Settings(host="0.0.0.0", published_host="127.0.0.1"))
        with pytest.raises(KeysRequired, match=r"at 0\.0\.0\.0"):
            open_access(Settings(host="127.0.0.1", published_host="0.0.0.0"))

    @pytest.mark.parametrize(
        ("settings", "local_only"),
        [
            (Settings(), True),
            (Settings(published_host="127.0.0.1"), False),
            (Settings(anonymous=True), True),
            (Settings(anonymous=True, published_host="0.0.0.0"), False),
        ],
    )
    def test_only_where_all_may_do_everything_must_they_be_local(
        self, settings: Settings, *, local_only: bool
    ) -> None:
        assert open_access(settings)._local_only is local_only

    def test_closed_it_lets_go_of_redis(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed = AsyncMock()
        monkeypatch.setattr(ConnectionPool, "aclose", closed)
        asyncio.run(open_access(Settings()).close())
        closed.assert_not_awaited()
        redis = SecretStr("redis://127.0.0.1:1")
        asyncio.run(open_access(Settings(redis_url=redis)).close())
        closed.assert_awaited_once()

    def test_keys_that_cannot_be_read_open_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(KeysError, match="no file of keys"):
            open_access(Settings(keys=tmp_path / "none.json", anonymous=True))


def nothing() -> None:
    """Take part as a route, and as a dependency that checks nobody."""


def test_route_without_dependencies_needs_no_scope() -> None:
    route = GuardedRoute("/x", lambda: None)
    assert (route.scopes, route.is_search, route.openapi_extra) == ((), False, {})


@pytest.mark.parametrize("scopes", [(), ("read",), ("read", "write")])
@pytest.mark.parametrize("is_search", [False, True])
def test_a_route_keeps_what_is_no_check_of_its_callers(
    scopes: tuple[KeyScope, ...], *, is_search: bool
) -> None:
    checks: list[Callable[..., Any]] = [
        *map(requires, scopes),
        *([counts_as_search] if is_search else []),
    ]
    dependencies = [Depends(one) for one in (*checks, nothing)]
    extra = {"x-more": 1}
    route = GuardedRoute("/it", nothing, dependencies=dependencies, openapi_extra=extra)
    assert [one.dependency for one in route.dependencies] == [nothing]
    assert (route.scopes, route.is_search) == (scopes, is_search)
    security = [{name: [scopes[-1]]} for name in SECURITY_SCHEMES] if scopes else []
    assert route.openapi_extra == extra | ({"security": security} if scopes else {})


def test_who_may_ask_is_said_for_people(keys_file: KeysFile) -> None:
    keyed = Settings(keys=keys_file.path)
    assert open_access(Settings()).summary == (
        "programs on this machine have the scope admin without a key; clients of a proxy on this "
        "machine have this scope too if the proxy adds no forwarded headers: set VOUCH_KEYS behind "
        "a proxy"
    )
    assert open_access(keyed).summary == "keys; without a key no access"
    anonymous = keyed.model_copy(update={"anonymous": True})
    assert open_access(anonymous).summary == "keys; without a key anyone, with the scope write"


def test_a_key_sees_what_any_of_its_patterns_names() -> None:
    limits = KeyLimits(galleries=("shoes-*", "birds"))
    assert [limits.sees(name) for name in ("shoes-1", "birds", "shoes", "Birds")] == [
        True,
        True,
        False,
        False,
    ]
    assert KeyLimits().sees("anything")


def test_a_key_and_an_address_of_the_same_letters_are_counted_apart() -> None:
    assert account_of_key("10.0.0.1") != account_of_address("10.0.0.1") != "10.0.0.1"
    assert account_of_key("10.0.0.1") != "10.0.0.1"
