"""Which names a service goes by, as a page that renamed its host to 127.0.0.1 meets it."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest
from starlette.testclient import TestClient

from model_store.errors import InvalidHead, MisdirectedRequest
from service.access.hosts import AllowedHosts
from tests.end_to_end.keys import KeysFile, bearer

StartClient = Callable[..., TestClient]

EVIL = "evil.example:8080"
OWN = [
    "127.0.0.1",
    "127.0.0.1:8080",
    "localhost:9",
    "LOCALHOST",
    "[::1]:80",
    "127.9.9.9",
    "a.localhost",
]
FOREIGN = [EVIL, "127.0.0.1.evil.example", "10.0.0.1", "localhost.evil.example", "[2001:db8::1]"]

ATTACKS: dict[str, Callable[[TestClient], httpx2.Response]] = {
    "read": lambda client: client.get("/v1/galleries/digits/items"),
    "delete": lambda client: client.delete("/v1/galleries/digits/items/digit-1"),
    "compact": lambda client: client.post("/v1/galleries/digits/compact"),
    "page": lambda client: client.get("/"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_page_that_renamed_its_host_gets_nothing(start: StartClient, attack: str) -> None:
    client = start()
    client.headers |= {"Host": EVIL, "Origin": f"http://{EVIL}"}
    refused = ATTACKS[attack](client)
    assert refused.status_code == 421
    assert refused.json()["code"] == "misdirected_request"
    assert "VOUCH_ALLOWED_HOSTS" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, []),
        (
            {"allowed_hosts": ("shop.example", "*.own.example")},
            ["shop.example:80", "b.own.example", "a.b.own.example"],
        ),
        ({"host": "0.0.0.0", "anonymous": True, "allowed_hosts": ("x.example",)}, ["x.example."]),
        ({"allowed_hosts": ("*",)}, FOREIGN),
        ({"host": "0.0.0.0", "anonymous": True}, FOREIGN),
    ],
)
def test_which_names_are_its_own(
    start: StartClient, settings: dict[str, object], names: list[str]
) -> None:
    client = start(**settings)
    for name in OWN + names:
        assert client.get("/docs", headers={"Host": name}).status_code == 200, name
    for name in set(FOREIGN) - set(names):
        assert client.get("/docs", headers={"Host": name}).status_code == 421, name


def test_a_name_below_is_meant_and_not_the_name_itself(start: StartClient) -> None:
    client = start(allowed_hosts=("*.own.example",))
    assert client.get("/docs", headers={"Host": "own.example"}).status_code == 421


def test_who_has_a_key_may_call_it_what_they_like(start: StartClient, keys_file: KeysFile) -> None:
    key = bearer(keys_file.make("read"))
    client = start(keys=keys_file.path)
    assert client.get("/v1/galleries", headers={"Host": EVIL, **key}).status_code == 200
    client = start(keys=keys_file.path, allowed_hosts=("shop.example",))
    assert client.get("/v1/galleries", headers={"Host": EVIL, **key}).status_code == 421


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", "user@127.0.0.1", "[::1", "127.0.0.1:port", "é"]
)
def test_what_is_no_host(start: StartClient, name: str) -> None:
    refused = start().get("/livez", headers={b"Host": name.encode()})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_head")


def test_two_hosts_are_refused(start: StartClient) -> None:
    refused = start(host="0.0.0.0", anonymous=True).get(
        "/livez", headers=[("Host", "127.0.0.1"), ("Host", "127.0.0.1")]
    )
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_head")


def test_only_http_1_0_may_leave_its_host_out() -> None:
    hosts, named = AllowedHosts(["own.example"]), [(b"host", b"Evil.example:8080")]
    hosts.check({"http_version": "1.0", "headers": [], "path": "/"})
    for version in ({}, {"http_version": "1.0"}, {"http_version": "1.1"}, {"http_version": "2"}):
        with pytest.raises(MisdirectedRequest, match=r"'evil\.example'"):
            hosts.check({**version, "headers": named, "path": "/"})
    for version in ({}, {"http_version": "1.1"}, {"http_version": "2"}):
        with pytest.raises(InvalidHead, match="0 received"):
            hosts.check({**version, "headers": [], "path": "/"})


def test_a_slash_too_many_is_sent_on_within_the_host(start: StartClient) -> None:
    """Where any name is taken, what a request calls the host must not become an address."""
    client = start(host="0.0.0.0", anonymous=True)
    answered = client.get("/v1/galleries/?x=1", headers={"Host": EVIL}, follow_redirects=False)
    assert answered.status_code == 307
    assert answered.headers["location"] == "/v1/galleries?x=1"


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_by_address_are_answered(start: StartClient, path: str) -> None:
    client = start(allowed_hosts=("search.example",))
    asked = {"Host": "10.1.2.3:8080"}
    assert client.get(path, headers=asked).status_code == 200
    for other in ("/v1/galleries", f"{path}/", f"/v1{path}"):
        assert client.get(other, headers=asked).status_code == 421


def test_metrics_are_answered_by_address_and_not_by_a_foreign_name(start: StartClient) -> None:
    client = start()
    assert client.get("/metrics", headers={"Host": "10.1.2.3:8080"}).status_code == 200
    assert client.get("/metrics", headers={"Host": EVIL}).status_code == 421
    for other in ("/v1/galleries", "/v1/metrics", "/metrics/"):
        assert client.get(other, headers={"Host": "10.1.2.3:8080"}).status_code == 421
