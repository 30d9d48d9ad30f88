"""How often one may ask, as a client meets it."""

from __future__ import annotations

from collections.abc import Callable

from starlette.testclient import TestClient

from tests.end_to_end.keys import KeysFile, bearer, id_of, secret_of
from tests.end_to_end.processes import TIMEOUT_S, Redis
from tests.end_to_end.questions import search
from tests.support.local_client import LocalClient

StartClient = Callable[..., TestClient]


def test_too_many_are_refused_and_all_are_told(start: StartClient, digit: bytes) -> None:
    client = start(rate_limit="3/day")
    answers = [search(client, digit) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    left = [answer.headers["ratelimit-remaining"] for answer in answers]
    assert left == ["2", "1", "0", "0", "0"]
    assert {answer.headers["ratelimit-limit"] for answer in answers} == {"3"}
    refused = answers[-1]
    assert refused.json()["code"] == "rate_limited"
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert refused.headers["retry-after"] == refused.headers["ratelimit-reset"]
    assert f"wait {refused.headers['retry-after']} s" in refused.json()["detail"]
    assert "retry-after" not in answers[0].headers


def test_a_request_counts_once_whatever_it_asks_for(
    start: StartClient, keys_file: KeysFile
) -> None:
    """A route that needs `write` lies in a router that needs `read`."""
    client = start(keys=keys_file.path, rate_limit="9/day")
    client.headers.update(bearer(keys_file.make("write")))
    paths = ("digits/feedback", "digits/items/x/thumbnail", "digits/samples/1")
    left = []
    for path in paths:
        method = "POST" if path.endswith("feedback") else "GET"
        answer = client.request(method, f"/v1/galleries/{path}")
        left.append(answer.headers["ratelimit-remaining"])  # of errors and pictures too
    assert left == ["8", "7", "6"]


def test_a_key_may_have_its_own(start: StartClient, keys_file: KeysFile) -> None:
    client = start(keys=keys_file.path, rate_limit="2/day")
    usual = keys_file.make("read")
    other = keys_file.make("read")
    generous = keys_file.make("read", rate_limit="4/hour")

    def accepted(text: str) -> int:
        answers = [client.get("/v1/galleries", headers=bearer(text)) for _ in range(6)]
        return [answer.status_code for answer in answers].count(200)

    assert [accepted(text) for text in (usual, other, generous)] == [2, 2, 4]


def test_without_a_key_each_address_has_its_own(start: StartClient) -> None:
    client = start(rate_limit="1/day", anonymous=True)
    app = client.app
    groups = [
        ["10.0.0.1", "::ffff:10.0.0.1"],
        ["10.0.0.2"],
        ["2001:db8::1", "2001:db8::ffff:1"],  # of one network: one host has all of them
        ["2001:db8:0:2::1", "2001:db8:0:2:8000::1"],  # which are all that begin with 64 of its bits
        ["2001:db8:0:1::1"],
        ["testclient"],
    ]
    for group in groups:
        statuses = [
            LocalClient(app, client=(address, 1)).get("/v1/galleries").status_code
            for address in group
        ]
        assert statuses == [200, 429][: len(group)], group


def test_who_is_refused_is_not_counted(start: StartClient, keys_file: KeysFile) -> None:
    client = start(keys=keys_file.path, rate_limit="1/day")
    for _ in range(5):
        assert client.get("/v1/galleries").status_code == 401
    text = keys_file.make("read")
    assert client.get("/v1/galleries", headers=bearer(text)).status_code == 200


def test_they_outlive_redis(start: StartClient, keys_file: KeysFile, redis_server: Redis) -> None:
    text = keys_file.make("read")
    shared = {"redis_url": redis_server.url, "redis_timeout_s": TIMEOUT_S}
    one, other = (start(keys=keys_file.path, rate_limit="4/day", **shared) for _ in range(2))

    def ask(client: TestClient) -> int:
        return client.get("/v1/galleries", headers=bearer(text)).status_code

    assert [ask(one), ask(other), ask(one)] == [200, 200, 200]
    names = b" ".join(key for key in redis_server.client.keys("*") if isinstance(key, bytes))
    assert id_of(text).encode() in names
    assert secret_of(text).encode() not in names
    redis_server.kill()
    assert [ask(one), ask(one)] == [200, 429]
