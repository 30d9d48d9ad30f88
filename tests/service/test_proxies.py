"""Who asks, as proxies say it and as clients claim it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.access.hosts import KnownProxies, is_forwarding
from tests.end_to_end.keys import KeysFile, bearer, id_of
from tests.support.local_client import LocalClient

StartClient = Callable[..., TestClient]

READ, COMPACT = "/v1/galleries", "/v1/galleries/nothing/compact"
ELSEWHERE = "203.0.113.9"


def from_(client: TestClient, address: str) -> TestClient:
    return LocalClient(client.app, client=(address, 1), raise_server_exceptions=False)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": ELSEWHERE},
        {"X-Forwarded-For": "127.0.0.1"},
        {"Forwarded": f"for={ELSEWHERE}"},
        {"X-Real-IP": ELSEWHERE},
        {"X-Forwarded-Host": "shop.example"},
        {"Via": "1.1 proxy"},
        {"X-Forwarded-Prefix": "/images"},
        {"X-Original-Forwarded-For": ELSEWHERE},
        {"CF-Connecting-IP": "127.0.0.1"},
    ],
)
def test_without_keys_nothing_is_for_those_behind_a_proxy(
    start: StartClient, headers: dict[str, str]
) -> None:
    client = start()
    assert client.post(COMPACT).status_code == 404, "this machine's own are admins"
    refused = client.post(COMPACT, headers=headers)
    assert refused.status_code == client.get(READ, headers=headers).status_code == 401
    assert "through a proxy" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("name", "forwarding"),
    [
        ("x-forwarded-for", True),
        ("x-forwarded-proto", True),
        ("x-forwarded-port", True),
        ("x-forwarded", False),
        ("x-forwardedfor", False),
        ("x-original-url", True),
        ("x-originals", False),
        ("x-client-ip", True),
        ("x-client-ips", False),
        ("client-ip", True),
        ("true-client-ip", True),
        ("x-request-id", False),
        ("user-agent", False),
    ],
)
def test_headers_of_proxies_are_known(name: str, forwarding: bool) -> None:
    assert is_forwarding(name.encode()) is forwarding


def test_anyone_may_be_allowed_to_read_and_write_all_the_same(start: StartClient) -> None:
    client = start(anonymous=True)
    headers = {"X-Forwarded-For": ELSEWHERE}
    assert client.get(READ, headers=headers).status_code == 200
    assert client.post(COMPACT, headers=headers).status_code == 401


@pytest.mark.parametrize("named", [("127.0.0.1",), ("127.0.0.1/8",), ("10.0.0.7", "*")])
def test_a_proxy_that_is_named_is_believed(start: StartClient, named: tuple[str, ...]) -> None:
    client = start(trusted_proxies=named)
    assert client.post(COMPACT, headers={"X-Forwarded-For": "127.0.0.1"}).status_code == 404
    refused = client.post(COMPACT, headers={"X-Forwarded-For": ELSEWHERE})
    assert refused.status_code == 401
    assert refused.json()["detail"].endswith("create keys with `vouch-keys create`.")
    assert "Send a valid key" not in refused.json()["detail"]  # the service has no keys
    assert client.post(COMPACT, headers={"X-Real-IP": "127.0.0.1"}).status_code == 401


def test_who_connects_from_elsewhere_is_no_admin_by_what_it_says(start: StartClient) -> None:
    stranger = from_(start(trusted_proxies=("10.0.0.7",)), ELSEWHERE)
    for headers in ({}, {"X-Forwarded-For": "127.0.0.1"}):
        assert stranger.get(READ, headers=headers).status_code == 401


def test_the_balancer_of_a_container_says_who_asks(start: StartClient) -> None:
    """The host publishes the port on 127.0.0.1; in the container everybody comes from elsewhere."""
    client = start(host="0.0.0.0", published_host="127.0.0.1", trusted_proxies=("*",))
    balancer = from_(client, "172.18.0.3")
    asked = balancer.post(COMPACT, headers={"X-Forwarded-For": "172.18.0.1"})
    assert asked.status_code == 404


def test_a_claim_changes_nobody_elses_count(start: StartClient, keys_file: KeysFile) -> None:
    key = keys_file.make("read")
    client = start(keys=keys_file.path, anonymous=True, rate_limit="2/day")
    for claimed in (id_of(key), f"key {id_of(key)}", ELSEWHERE, "x" * 50_000):
        client.get(READ, headers={"X-Forwarded-For": claimed})
    assert client.get(READ).status_code == 429, "claims are not believed: one address asked"
    assert client.get(READ, headers=bearer(key)).status_code == 200


def test_a_named_proxy_cannot_be_made_to_use_up_a_key(
    start: StartClient, keys_file: KeysFile
) -> None:
    key = keys_file.make("read")
    client = start(
        keys=keys_file.path, anonymous=True, rate_limit="2/day", trusted_proxies=("127.0.0.1",)
    )
    for claimed in (id_of(key), f"key {id_of(key)}", "x" * 50_000, "y"):
        status = client.get(READ, headers={"X-Forwarded-For": claimed}).status_code
    assert status == 429, "what is no address is one caller, however many names it has"
    assert client.get(READ, headers=bearer(key)).status_code == 200


def test_bad_keys_count_against_the_address_that_tries_them(
    start: StartClient, keys_file: KeysFile
) -> None:
    key = keys_file.make("read")
    client = start(keys=keys_file.path, rate_limit="3/day")
    answers = [client.get(READ, headers=bearer(f"wrong{n}")) for n in range(5)]
    assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429]
    assert int(answers[-1].headers["retry-after"]) > 0
    assert answers[-1].headers["ratelimit-remaining"] == "0"
    without = client.get(READ)
    assert (without.status_code, "retry-after" in without.headers) == (401, False)
    assert client.get(READ, headers=bearer(key)).status_code == 200, "a good key has its own count"


def scope_through(client: tuple[str, int] | None, trusted: Sequence[str], prefix: str) -> Any:
    """Return the scope of a request as the application gets it."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    scope: Any = {"type": "http", "client": client, "path": "/vouch/livez", "headers": []}
    nothing: Any = None
    asyncio.run(KnownProxies(app, trusted, prefix)(scope, nothing, nothing))
    return seen[0]


@pytest.mark.parametrize("client", [None, ("unix", 0), ("10.0.0.9", 1)])
def test_client_that_is_no_mapped_address_stays(client: tuple[str, int] | None) -> None:
    assert scope_through(client, [], "")["client"] == client


def test_mapped_address_of_a_client_is_its_ipv4_address() -> None:
    scope = scope_through(("::ffff:10.0.0.9", 1), [], "")
    assert tuple(scope["client"]) == ("10.0.0.9", 1)


def test_trusted_proxy_without_a_prefix_has_the_configured_one() -> None:
    scope = scope_through(("10.0.0.9", 1), ["10.0.0.9"], "/vouch")
    assert (scope["root_path"], scope["path"]) == ("/vouch", "/livez")
