"""A Redis that answers what no Redis answers: nobody is refused for it, and it is not believed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.predictive import Predictive
from service.access.rate_limits import Rates
from service.encoding.cache import CacheEntry, RedisCache
from service.settings import parse_rate
from tests.end_to_end.processes import Redis
from tests.end_to_end.questions import content, search
from tests.laws.cache_laws import assert_same_bits, new_entry
from tests.torture.fake_redis import NONSENSE, NoRedis

StartClient = Callable[..., TestClient]


@pytest.fixture(params=[False, True], ids=["rude", "greeting"])
def no_redis(request: pytest.FixtureRequest) -> Iterator[Callable[[str], NoRedis]]:
    """Servers of nonsense."""
    started: list[NoRedis] = []

    def start(kind: str) -> NoRedis:
        started.append(NoRedis(NONSENSE[kind], greets=request.param))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("kind", NONSENSE)
async def test_it_has_no_entry_and_no_count(no_redis: Callable[[str], NoRedis], kind: str) -> None:
    url = no_redis(kind).url
    cache = RedisCache(url, 0.3, 60)
    await cache.put("key", new_entry(0))
    assert await cache.get("key") is None
    await cache.close()
    rates = Rates(url, 0.3)
    standings = [await rates.count("caller", parse_rate("100/day")) for _ in range(3)]
    assert all(isinstance(standing.count, int) for standing in standings)
    assert all(standing.headers() for standing in standings)
    await rates.close()


@pytest.mark.parametrize(
    "kind", ["a negative length", "no length", "a deep array", "a huge integer"]
)
def test_nobody_is_refused_for_it(
    start: StartClient,
    no_redis: Callable[[str], NoRedis],
    digit: bytes,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr("service.redis_calls.REST_AFTER_FAILURE_S", 0.0)
    client = start(redis_url=no_redis(kind).url, rate_limit="100/day")
    first = search(client, digit, limit=5)
    asked: list[httpx2.Response] = [first, client.get("/v1/galleries"), client.get("/readyz")]
    asked.append(next_page(client, first))
    assert [answered.status_code for answered in asked] == [200, 200, 200, 200]


@pytest.mark.parametrize(("cache_bytes", "status"), [(0, 503), (2**20, 200)])
def test_cursor_is_followed_while_redis_is_silent(
    start: StartClient, digit: bytes, cache_bytes: int, status: int
) -> None:
    """From this process's memory; without it, whether the query is known cannot be said."""
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        client = start(redis_url=url, redis_timeout_s=0.05, cache_bytes=cache_bytes)
        response = next_page(client, search(client, digit, limit=5))
    assert response.status_code == status
    if status == 503:
        assert response.json()["code"] == "not_ready"
        assert int(response.headers["retry-after"]) > 0


def next_page(client: TestClient, first: httpx2.Response) -> httpx2.Response:
    """Follow the cursor of an answer."""
    cursor = first.json()["next_cursor"]
    return client.get("/v1/galleries/digits/search/next", params={"cursor": cursor})


@pytest.mark.anyio
class TestAnEntry:
    async def test_of_another_image_is_none_of_this_one(self, redis_server: Redis) -> None:
        cache = RedisCache(redis_server.url, 60, 60)
        await cache.put("mine", new_entry(0))
        await cache.put("other", new_entry(1))
        entry = redis_server.client.get("other")
        assert entry is not None
        redis_server.client.set("mine", entry)
        assert await cache.get("mine") is None
        await cache.close()

    async def test_made_without_the_secret_is_not_believed(self, redis_server: Redis) -> None:
        forger = RedisCache(redis_server.url, 60, 60)
        replicas = [RedisCache(redis_server.url, 60, 60, b"of all replicas") for _ in range(2)]
        await forger.put("key", new_entry(0))
        assert await replicas[0].get("key") is None
        await replicas[0].put("key", new_entry(1))
        assert_same_bits(await replicas[1].get("key"), new_entry(1))
        assert await forger.get("key") is None
        for cache in (forger, *replicas):
            await cache.close()


ONE = new_entry(0).predictive
FORGED: dict[str, Predictive] = {
    "of no dimension": replace(ONE, direction=ONE.direction[:0], variance=ONE.variance[:0]),
    "without a variance": replace(ONE, variance=ONE.variance[:0]),
    "not a number": replace(ONE, direction=ONE.direction * np.float32("nan")),
    "infinite": replace(ONE, variance=np.full_like(ONE.variance, np.inf)),
    "of a negative variance": replace(ONE, variance=-ONE.variance),
    "of spread -1": replace(ONE, spherical_variance=-1.0),
    "of spread NaN": replace(ONE, spherical_variance=float("nan")),
    "infinitely alien": replace(ONE, outlier_score=float("inf")),
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_distribution_is_none(kind: str) -> None:
    entry = replace(new_entry(0), predictive=FORGED[kind])
    assert CacheEntry.from_bytes(entry.to_bytes("key"), "key") is None


def test_an_entry_of_another_size_is_encoded_anew(
    start: StartClient, redis_server: Redis, digit: bytes, tmp_path: Path
) -> None:
    client = start(redis_url=redis_server.url, redis_timeout_s=60)
    wanted = content(search(client, digit).json())
    [key] = redis_server.client.keys("vouch:*")
    assert isinstance(key, bytes)
    for forged in (new_entry(0), new_entry(0, dim=1)):
        redis_server.client.set(key, forged.to_bytes(key.decode()))
        answered = search(client, digit)
        assert answered.status_code == 200, answered.text
        assert content(answered.json()) == wanted
