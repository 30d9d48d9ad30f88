"""A Redis that answers what no Redis answers: nobody is refused for it, and it is not believed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
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

StartClient = Callable[..., TestClient]

NONSENSE: dict[str, bytes] = {
    "nothing": b"",
    "an empty line": b"\r\n",
    "no reply type": b"hello\r\n",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "TLS": b"\x15\x03\x03\x00\x02\x02\x46",
    "NULs": b"\0" * 100,
    "random": np.random.default_rng(0).bytes(300),
    "not UTF-8": b"+\xff\xfe\r\n",
    "OK": b"+OK\r\n",
    "an error": b"-ERR no\r\n",
    "an error of 1 MB": b"-ERR " + b"x" * 2**20 + b"\r\n",
    "loading": b"-LOADING Redis is loading\r\n",
    "moved": b"-MOVED 1 127.0.0.1:1\r\n",
    "no password": b"-NOAUTH Authentication required.\r\n",
    "an integer": b":7\r\n",
    "a negative integer": b":-7\r\n",
    "a huge integer": b":" + b"9" * 5_000 + b"\r\n",
    "no integer": b":abc\r\n",
    "text": b"$5\r\nhello\r\n",
    "nil": b"$-1\r\n",
    "a negative length": b"$-5\r\nhello\r\n",
    "no length": b"$abc\r\nhello\r\n",
    "a huge length": b"$99999999999999999999\r\nhello\r\n",
    "a length that lies": b"$3\r\nhello\r\n",
    "an array": b"*2\r\n:1\r\n:2\r\n",
    "a nil array": b"*-1\r\n",
    "a huge array": b"*999999999\r\n:1\r\n",
    "a deep array": b"*1\r\n" * 5_000 + b":1\r\n",
    "a map": b"%1\r\n+a\r\n:1\r\n",
    "a double": b",inf\r\n",
    "a boolean": b"#t\r\n",
    "a big number": b"(" + b"9" * 5_000 + b"\r\n",
    "a push": b">2\r\n+message\r\n+x\r\n",
    "an endless line": b"+" + b"x" * 2**22,
    "many replies": b":1\r\n" * 10_000,
}


class NoRedis:
    """A server that says the same to every command, beyond a polite greeting if ``greets``."""

    def __init__(self, said: bytes, *, greets: bool) -> None:
        self._said, self._greets = said, greets
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._server.getsockname()[1]}/0"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                while heard := connection.recv(2**16):
                    greeting = b"HELLO" in heard or b"CLIENT" in heard or b"SELECT" in heard
                    if self._greets and greeting:
                        hello = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n"
                        n_ok = heard.count(b"SETINFO") + heard.count(b"MAINT")
                        connection.sendall(hello * (b"HELLO" in heard) + b"+OK\r\n" * n_ok)
                    else:
                        connection.sendall(self._said)
            except OSError:
                pass

    def close(self) -> None:
        """Stop; whoever is connected finds nobody."""
        self._server.close()


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
    monkeypatch.setattr("service.circuit_breaker.REST_AFTER_FAILURE_S", 0.0)
    client = start(redis_url=no_redis(kind).url, rate_limit="100/day")
    asked: list[httpx2.Response] = [search(client, digit), client.get("/v1/galleries")]
    asked.append(client.get("/readyz"))
    assert [answered.status_code for answered in asked] == [200, 200, 200]


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
    "of no dimension": replace(
        ONE, direction=ONE.direction[:0], variance=ONE.variance[:0], samples=ONE.samples[:, :0]
    ),
    "without samples": replace(ONE, samples=ONE.samples[:0]),
    "not a number": replace(ONE, direction=ONE.direction * np.float32("nan")),
    "infinite": replace(ONE, samples=np.full_like(ONE.samples, np.inf)),
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
    for forged in (new_entry(0), new_entry(0, n_samples=100, dim=1), new_entry(0, n_samples=1)):
        redis_server.client.set(key, forged.to_bytes(key.decode()))
        answered = search(client, digit)
        assert answered.status_code == 200, answered.text
        assert content(answered.json()) == wanted
