from __future__ import annotations

import asyncio
import logging
import signal
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.access.rate_limits import Rates
from service.encoding.cache import (
    ENTRY_BYTES,
    Cache,
    CacheEntry,
    ProcessCache,
    RedisCache,
    open_cache,
)
from service.settings import Settings, parse_rate
from tests.end_to_end.processes import TIMEOUT_S, Redis
from tests.laws.cache_laws import CacheLaws, assert_same_bits, new_entry

TTL_S = 3600


class TestProcessCache(CacheLaws):
    @pytest.fixture
    def cache(self) -> Cache:
        return ProcessCache(100 * held_bytes(new_entry(0)))


class TestRedisCache(CacheLaws):
    @pytest.fixture
    async def cache(self, redis_server: Redis) -> AsyncIterator[Cache]:
        async with opened(redis_server.url) as cache:
            yield cache


class TestRedisCacheWhileRedisIsSilent(CacheLaws):
    @pytest.fixture
    async def cache(self) -> AsyncIterator[Cache]:
        room = 200 * held_bytes(new_entry(0))
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            async with opened(f"redis://127.0.0.1:{silent.getsockname()[1]}", 0.05, room) as cache:
                yield cache


@asynccontextmanager
async def opened(
    url: str, timeout_s: float = TIMEOUT_S, max_bytes: int = 0
) -> AsyncIterator[RedisCache]:
    """A cache that by default waits for Redis, however loaded the machine is."""
    cache = RedisCache(url, timeout_s, TTL_S, max_bytes=max_bytes)
    try:
        yield cache
    finally:
        await cache.close()


def held_bytes(entry: CacheEntry) -> int:
    return ENTRY_BYTES + entry.predictive.direction.nbytes + entry.predictive.variance.nbytes


class TestTheLayout:
    @given(st.binary(max_size=300))
    def test_noise_is_no_entry(self, noise: bytes) -> None:
        assert CacheEntry.from_bytes(noise, "key") is None

    def test_any_damaged_byte_is_noticed(self) -> None:
        whole = new_entry(0, dim=3).to_bytes("key")
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << (place % 8)
            assert CacheEntry.from_bytes(bytes(damaged), "key") is None, f"byte {place}"

    def test_any_other_length_is_noticed(self) -> None:
        whole = new_entry(0, dim=3).to_bytes("key")
        for length in range(len(whole)):
            assert CacheEntry.from_bytes(whole[:length], "key") is None, f"{length} bytes"
        assert CacheEntry.from_bytes(whole + b"\0", "key") is None


@pytest.mark.anyio
class TestTheBoundOfTheProcessCache:
    async def test_the_least_recently_used_entry_goes_first(self) -> None:
        cache = ProcessCache(3 * held_bytes(new_entry(0)))
        for seed in (0, 1, 2):
            await cache.put(str(seed), new_entry(seed))
        await cache.get("0")
        await cache.put("3", new_entry(3))
        present = [key for key in "0123" if await cache.get(key) is not None]
        assert present == ["0", "2", "3"]

    async def test_a_replaced_entry_leaves_its_room(self) -> None:
        cache = ProcessCache(2 * held_bytes(new_entry(0)))
        await cache.put("other", new_entry(0))
        for seed in range(1, 20):
            await cache.put("same", new_entry(seed))
        assert_same_bits(await cache.get("other"), new_entry(0))
        assert_same_bits(await cache.get("same"), new_entry(19))

    async def test_an_entry_is_counted_with_its_objects(self) -> None:
        n = 2000
        tracemalloc.start()
        cache = ProcessCache(10**9)
        for seed in range(n):
            await cache.put(f"vouch:0:{seed:0100d}", new_entry(seed, 128))
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 0.7 < taken / (n * held_bytes(new_entry(0, 128))) < 1.1

    async def test_entries_of_any_size_stay_within_the_bound(self) -> None:
        generator = np.random.default_rng(0)
        bound = 20_000
        cache = ProcessCache(bound)
        entries = {f"{i % 37}": new_entry(i, int(generator.integers(2, 60))) for i in range(200)}
        kept: dict[str, CacheEntry] = {}
        for key, entry in entries.items():
            await cache.put(key, entry)
            found = {name: await cache.get(name) for name in entries}
            kept = {name: entry for name, entry in found.items() if entry is not None}
            assert sum(map(held_bytes, kept.values())) <= bound
        assert len(kept) > 1

    async def test_an_entry_ends_with_its_life(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cache, now = ProcessCache(10**6, life_s=10.0), 100.0
        monkeypatch.setattr("service.encoding.cache.time.monotonic", lambda: now)
        await cache.put("key", new_entry(0))
        now = 109.9
        assert await cache.get("key") is not None
        now = 110.0
        assert await cache.get("key") is None

    async def test_no_room_keeps_nothing(self) -> None:
        cache = ProcessCache(0)
        await cache.put("key", new_entry(0))
        assert await cache.get("key") is None


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a Redis that failed again at once, so that no test waits for it to be asked."""
    monkeypatch.setattr("service.redis_calls.REST_AFTER_FAILURE_S", 0.0)


@pytest.fixture
def long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.redis_calls.REST_AFTER_FAILURE_S", 10 * TIMEOUT_S)


@pytest.mark.anyio
class TestWhatIsInRedis:
    async def test_an_entry_ends_with_its_life(self, redis_server: Redis) -> None:
        async with opened(redis_server.url) as with_ttl:
            await with_ttl.put("key", new_entry(0))
            left = redis_server.client.pttl("key")
            assert 1000 * (TTL_S - 2 * TIMEOUT_S) < left <= 1000 * TTL_S

    async def test_replicas_share_their_entries(self, redis_server: Redis) -> None:
        async with opened(redis_server.url) as one, opened(redis_server.url) as other:
            await one.put("key", new_entry(0))
            assert_same_bits(await other.get("key"), new_entry(0))

    @pytest.mark.parametrize(
        "garbage",
        [b"", b"\0", b"hello", b"\xff" * 500, new_entry(0).to_bytes("key")[:-1], b"\x80\x04K\x01."],
        ids=["empty", "zero", "text", "ones", "truncated", "pickle"],
    )
    async def test_garbage_is_a_miss_and_is_replaced(
        self, redis_server: Redis, garbage: bytes
    ) -> None:
        async with opened(redis_server.url) as cache:
            redis_server.client.set("key", garbage)
            assert await cache.get("key") is None
            await cache.put("key", new_entry(0))
            assert_same_bits(await cache.get("key"), new_entry(0))

    async def test_a_value_of_another_type_is_a_miss_and_is_replaced(
        self, redis_server: Redis, long_rest: None
    ) -> None:
        async with opened(redis_server.url) as cache:
            redis_server.client.rpush("key", "an", "older", "layout")
            assert await cache.get("key") is None
            await cache.put("key", new_entry(0))
            assert_same_bits(await cache.get("key"), new_entry(0))

    async def test_a_full_redis_still_gives_what_it_has(
        self, redis_server: Redis, long_rest: None
    ) -> None:
        async with opened(redis_server.url) as cache:
            await cache.put("early", new_entry(0))
            redis_server.client.config_set("maxmemory", 1)
            await cache.put("late", new_entry(1))
            assert_same_bits(await cache.get("early"), new_entry(0))
            assert await cache.get("late") is None

    @pytest.mark.parametrize(
        ("refuse", "accept"),
        [
            ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
            ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ],
        ids=["full", "replica"],
    )
    async def test_a_redis_that_refuses_writes_is_said_once(
        self, redis_server: Redis, caplog: pytest.LogCaptureFixture, refuse: str, accept: str
    ) -> None:
        tell: Callable[..., object] = redis_server.client.execute_command
        async with opened(redis_server.url) as cache:
            await cache.put("early", new_entry(0))
            assert cache.state == "redis"
            for turn in (1, 2):
                tell(*refuse.split())
                for _ in range(3):
                    await cache.put("late", new_entry(1))
                    assert_same_bits(await cache.get("early"), new_entry(0))
                    assert cache.state == "redis (refuses writes)"
                said = [one for one in caplog.messages if "Redis refused" in one]
                assert len(said) == turn
                tell(*accept.split())
                await cache.put("late", new_entry(1))
                assert cache.state == "redis"

    async def test_a_redis_that_refuses_to_count_refuses_writes(self, redis_server: Redis) -> None:
        """Answers may all come from the cache, and then nothing else is written."""
        rates = Rates(redis_server.url, TIMEOUT_S)
        cache = RedisCache(redis_server.url, TIMEOUT_S, TTL_S, counting=rates.calls)
        for bytes_at_most, state in ((1, "redis (refuses writes)"), (0, "redis")):
            redis_server.client.config_set("maxmemory", bytes_at_most)
            await rates.count("caller", parse_rate("5/day"))
            assert await cache.get("key") is None
            assert cache.state == state
        await rates.close()
        await cache.close()


@pytest.mark.anyio
class TestRedisIsGone:
    async def test_database_that_does_not_exist(self, redis_server: Redis) -> None:
        room = 10 * held_bytes(new_entry(0))
        async with opened(redis_server.url.removesuffix("0") + "99", max_bytes=room) as cache:
            await cache.put("key", new_entry(0))
            assert_same_bits(await cache.get("key"), new_entry(0))
            assert cache.state == "redis (unreachable)"

    async def test_never_there(self) -> None:
        with closing(socket.socket()) as reserved:
            reserved.bind(("127.0.0.1", 0))  # bound, but not listening: refuses connections
            async with opened(f"redis://127.0.0.1:{reserved.getsockname()[1]}", 1) as cache:
                await cache.put("key", new_entry(0))
                assert await cache.get("key") is None
                assert cache.state == "redis (unreachable)"

    async def test_killed_and_back(
        self, redis_server: Redis, tmp_path: Path, no_rest: None
    ) -> None:
        async with opened(redis_server.url) as cache:
            await cache.put("key", new_entry(0))
            assert_same_bits(await cache.get("key"), new_entry(0))
            redis_server.kill()
            for _ in range(3):
                assert await cache.get("key") is None
                await cache.put("key", new_entry(0))
                assert cache.state == "redis (unreachable)"
            with Redis(tmp_path / "again.log", redis_server.port):
                assert await cache.get("key") is None  # it kept nothing
                await cache.put("key", new_entry(1))
                assert_same_bits(await cache.get("key"), new_entry(1))
                assert cache.state == "redis"

    async def test_hanging_and_back(self, redis_server: Redis, no_rest: None) -> None:
        entries = {"a": new_entry(0), "b": new_entry(1)}
        async with opened(redis_server.url) as before:
            for key, entry in entries.items():
                await before.put(key, entry)
        async with opened(redis_server.url, 0.5) as cache:
            redis_server.send(signal.SIGSTOP)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    assert await cache.get("a") is None
                    await cache.put("a", new_entry(2))
            finally:
                redis_server.send(signal.SIGCONT)
            # The late reply to the question about "a" must not answer the one about "b".
            async with asyncio.timeout(TIMEOUT_S):
                found = None
                while found is None:
                    found = await cache.get("b")
            assert_same_bits(found, entries["b"])

    async def test_entries_in_memory_are_found_only_while_it_is_silent(
        self, redis_server: Redis, no_rest: None
    ) -> None:
        room = 200 * held_bytes(new_entry(0))
        async with opened(redis_server.url, 0.5, room) as cache, opened(redis_server.url) as other:
            await cache.put("taken", new_entry(0))
            redis_server.send(signal.SIGSTOP)
            try:
                await cache.put("not taken", new_entry(1))
                assert_same_bits(await cache.get("taken"), new_entry(0))
            finally:
                redis_server.send(signal.SIGCONT)
            await other.remove("taken")
            await other.remove("not taken")
            async with asyncio.timeout(TIMEOUT_S):
                while await cache.get("taken") is not None:
                    pass
            assert_same_bits(await cache.get("not taken"), new_entry(1))

    async def test_a_host_that_never_answers_is_not_waited_for(self) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
            async with opened(url, 0.05) as cache:
                async with asyncio.timeout(TIMEOUT_S):
                    assert await cache.get("key") is None

    async def test_it_is_left_alone_for_a_while_and_mourned_once(
        self, long_rest: None, caplog: pytest.LogCaptureFixture
    ) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            async with opened(f"redis://127.0.0.1:{silent.getsockname()[1]}", 0.05) as cache:
                with caplog.at_level(logging.WARNING, "service.encoding.cache"):
                    for _ in range(5):
                        assert await cache.get("key") is None
                        await cache.put("key", new_entry(0))
            silent.settimeout(0)
            callers = list(accepted(silent))
            assert len(callers) == 1
        assert [record.message for record in caplog.records] == [
            "Redis cannot be reached, answering without it"
        ]
        (record,) = caplog.records
        assert vars(record)["fields"]["reason"] == "TimeoutError: no answer within 0.05 s"


def accepted(server: socket.socket) -> Iterator[str]:
    """Who has connected to ``server`` so far."""
    while True:
        try:
            connection, address = server.accept()
        except BlockingIOError:
            return
        connection.close()
        yield str(address)


class TestWhichCacheIsOpened:
    def test_without_redis_it_is_in_the_process(self) -> None:
        assert open_cache(Settings()).state == "process"

    @pytest.mark.anyio
    async def test_its_bound_is_the_settings(self) -> None:
        entry = new_entry(0)
        for room, kept in ((held_bytes(entry), True), (held_bytes(entry) - 1, False)):
            cache = open_cache(Settings(cache_bytes=room))
            await cache.put("key", entry)
            assert (await cache.get("key") is not None) is kept

    @pytest.mark.anyio
    async def test_with_redis_it_is_there_for_as_long_as_the_settings_say(
        self, redis_server: Redis
    ) -> None:
        settings = Settings(redis_url=redis_server.url, cache_ttl_s=5000, redis_timeout_s=TIMEOUT_S)
        cache = open_cache(settings)
        await cache.put("key", new_entry(0))
        assert 5000 - 2 * TIMEOUT_S < redis_server.client.ttl("key") <= 5000
        await cache.close()
