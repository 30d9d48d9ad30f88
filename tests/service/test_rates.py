from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from service.access.rate_limits import MAX_COUNT, Rates, Standing, Tallies, Tally
from service.settings import parse_rate
from tests.end_to_end.processes import TIMEOUT_S, Redis

FIVE = parse_rate("5/day")


@asynccontextmanager
async def opened(url: str | None, timeout_s: float = TIMEOUT_S) -> AsyncIterator[Rates]:
    """Counts that by default wait for Redis, however loaded the machine is."""
    rates = Rates(url, timeout_s)
    try:
        yield rates
    finally:
        await rates.close()


async def counts(rates: Rates, caller: str, n: int) -> list[int]:
    return [(await rates.count(caller, FIVE)).count for _ in range(n)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in the one element of a list."""
    now = [1_000_000.0]
    monkeypatch.setattr("service.access.rate_limits.time.time", lambda: now[0])
    return now


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a Redis that failed again at once, so that no test waits for it to be asked."""
    monkeypatch.setattr("service.redis_calls.REST_AFTER_FAILURE_S", 0.0)


@pytest.mark.anyio
async def test_redis_has_so_long_to_take_a_call_and_to_answer_it_and_is_asked_once() -> None:
    async with opened("redis://127.0.0.1:1", 0.25) as rates:
        assert rates._pool is not None
        asked = rates._pool.connection_kwargs
        assert asked["socket_timeout"] == asked["socket_connect_timeout"] == 0.25
        assert asked["retry"].get_retries() == 0


class TestTheNotation:
    @pytest.mark.parametrize(
        ("text", "amount", "seconds"),
        [("600/minute", 600, 60), ("1 per second", 1, 1), ("5/10 minutes", 5, 600)],
    )
    def test_what_it_means(self, text: str, amount: int, seconds: int) -> None:
        rate = parse_rate(text)
        assert (rate.amount, rate.get_expiry()) == (amount, seconds)

    @pytest.mark.parametrize("text", ["", "600", "often", "0/minute", "-1/minute", "1/s; 2/minute"])
    def test_what_it_does_not(self, text: str) -> None:
        with pytest.raises(ValueError, match="such as 600/minute"):
            parse_rate(text)


@pytest.mark.anyio
class TestWithoutRedis:
    async def test_what_is_too_many(self, clock: list[float]) -> None:
        clock[0] = 60 * 1000 + 20.5
        async with opened(None) as rates:
            seen = [await rates.count("key", parse_rate("2/minute")) for _ in range(3)]
        assert [standing.exceeded for standing in seen] == [False, False, True]
        assert [standing.headers() for standing in seen] == [
            {"RateLimit-Limit": "2", "RateLimit-Remaining": left, "RateLimit-Reset": "40"} | also
            for left, also in [("1", {}), ("0", {}), ("0", {"Retry-After": "40"})]
        ]

    async def test_who_waits_as_told_is_let_in(self, clock: list[float]) -> None:
        rate = parse_rate("1/10 second")
        async with opened(None) as rates:
            for start in (50.0, 61.3, 79.9):
                clock[0] = start
                await rates.count("key", rate)
                refused = await rates.count("key", rate)
                assert refused.exceeded
                clock[0] += float(refused.headers()["Retry-After"])
                assert not (await rates.count("key", rate)).exceeded

    async def test_callers_and_rates_are_counted_apart(self) -> None:
        async with opened(None) as rates:
            assert await counts(rates, "a", 3) == [1, 2, 3]
            assert await counts(rates, "b", 2) == [1, 2]
            assert (await rates.count("a", parse_rate("7/day"))).count == 1
            assert await counts(rates, "a", 1) == [4]


@pytest.mark.parametrize(("left", "told"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.2, "2")])
def test_who_has_to_wait_is_told_whole_seconds_and_one_at_least(left: float, told: str) -> None:
    assert Standing(5, 6, left).headers()["Retry-After"] == told


class TestTheBoundOfTheProcess:
    def test_who_was_idle_longest_is_forgotten_first(self) -> None:
        tallies = Tallies(max_callers=2)
        found = [tallies.of(name, FIVE, 0).settle(0, None) for name in "abacab"]
        assert found == [1, 1, 2, 1, 3, 1]

    def test_a_new_period_begins_at_one(self) -> None:
        tallies = Tallies()
        periods = [7] * 3 + [8] * 2
        found = [tallies.of("a", FIVE, period).settle(0, None) for period in periods]
        assert found == [1, 2, 3, 1, 2]


@pytest.mark.anyio
class TestInRedis:
    async def test_replicas_count_together(self, redis_server: Redis) -> None:
        async with opened(redis_server.url) as one, opened(redis_server.url) as other:
            assert await counts(one, "key", 2) == [1, 2]
            assert await counts(other, "key", 2) == [3, 4]
            assert await counts(one, "key", 2) == [5, 6]
            assert (await other.count("key", FIVE)).exceeded

    async def test_many_at_once_are_counted_each_once(self, redis_server: Redis) -> None:
        async with opened(redis_server.url) as one, opened(redis_server.url) as other:
            seen = await asyncio.gather(
                *(rates.count("key", FIVE) for rates in (one, other) for _ in range(40))
            )
        assert sum(not standing.exceeded for standing in seen) == 5

    async def test_what_is_there_says_who_and_ends_with_its_period(
        self, redis_server: Redis, clock: list[float]
    ) -> None:
        async with opened(redis_server.url) as rates:
            await rates.count("a1b2c3", parse_rate("5/minute"))
            [name] = redis_server.client.keys("*")
            assert isinstance(name, bytes)
            assert name.startswith(b"vouch:rate:")
            assert b"a1b2c3" in name
            assert 60 - 2 * TIMEOUT_S < redis_server.client.ttl(name) <= 60
            clock[0] += 60
            assert (await rates.count("a1b2c3", parse_rate("5/minute"))).count == 1

    async def test_garbage_under_a_key_costs_its_caller_nothing_but_company(
        self, redis_server: Redis
    ) -> None:
        async with opened(redis_server.url) as rates:
            await rates.count("key", FIVE)
            [name] = redis_server.client.keys("*")
            redis_server.client.set(name, "garbage")
            assert await counts(rates, "key", 2) == [2, 3]
            async with opened(redis_server.url) as other:
                assert await counts(other, "another", 1) == [1]
            assert await counts(rates, "another", 1) == [2]  # Redis itself is not given up

    async def test_a_full_redis_does_not_stop_the_counting(self, redis_server: Redis) -> None:
        redis_server.client.config_set("maxmemory", 1)
        async with opened(redis_server.url) as rates:
            assert await counts(rates, "key", 3) == [1, 2, 3]


@pytest.mark.anyio
class TestRedisIsGone:
    async def test_killed_and_back(
        self, redis_server: Redis, tmp_path: Path, no_rest: None
    ) -> None:
        async with opened(redis_server.url) as rates, opened(redis_server.url) as other:
            assert await counts(rates, "key", 2) == [1, 2]
            assert await counts(other, "key", 1) == [3]
            redis_server.kill()
            assert await counts(rates, "key", 1) == [3]  # what this process has seen itself
            with Redis(tmp_path / "again.log", redis_server.port):
                # It comes back empty; nobody is forgiven what was asked here.
                assert await counts(rates, "key", 2) == [4, 5]
                assert (await rates.count("key", FIVE)).exceeded
                # The other finds its connection broken once, then counts along again.
                assert await counts(other, "key", 2) == [4, 5]

    async def test_hanging_and_back(self, redis_server: Redis, no_rest: None) -> None:
        async with opened(redis_server.url, 0.5) as rates:
            redis_server.send(signal.SIGSTOP)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    assert await counts(rates, "key", 1) == [1]
            finally:
                redis_server.send(signal.SIGCONT)
            # Late replies about one caller must not be taken for those about another.
            async with asyncio.timeout(TIMEOUT_S):
                assert await counts(rates, "another", 4) == [1, 2, 3, 4]

    async def test_it_is_waited_for_once_however_many_round_trips(self) -> None:
        loop = asyncio.get_running_loop()
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
            async with opened(url, 0.2) as rates:
                started = loop.time()
                assert await counts(rates, "key", 1) == [1]
                assert loop.time() - started < TIMEOUT_S

    async def test_it_is_left_alone_for_a_while_and_mourned_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("service.redis_calls.REST_AFTER_FAILURE_S", 10 * TIMEOUT_S)
        with closing(socket.create_server(("127.0.0.1", 0))) as silent:
            async with opened(f"redis://127.0.0.1:{silent.getsockname()[1]}", 0.05) as rates:
                with caplog.at_level(logging.WARNING, "service.access.rate_limits"):
                    assert await counts(rates, "key", 5) == [1, 2, 3, 4, 5]
            silent.settimeout(0)
            connection, _ = silent.accept()
            connection.close()
            with pytest.raises(BlockingIOError):
                silent.accept()
        assert [record.message for record in caplog.records] == [
            "Redis cannot be reached, counting without it"
        ]


def test_what_redis_forgot_is_added_to_what_it_counts_for_all_from_then_on() -> None:
    tally = Tally(0)
    assert tally.settle(5, 1) == 6, "it has forgotten five"
    assert tally.settle(6, 2) == 7
    assert tally.settle(7, 10) == 15, "others have asked seven times meanwhile"


async def told(monkeypatch: pytest.MonkeyPatch, said: list[object]) -> list[int]:
    """The counts of one caller whom Redis tells of in turn."""
    async with opened("redis://127.0.0.1:1") as rates:  # is never reached
        answers = iter(said)

        async def ask(*_: object) -> object:
            return next(answers)

        monkeypatch.setattr(rates.calls, "ask", ask)
        return await counts(rates, "key", len(said))


@pytest.mark.anyio
async def test_the_first_of_a_redis_that_came_back_empty_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others have asked five times since: all of them, and the three that it has forgotten."""
    assert await told(monkeypatch, [1, 2, 3, 1, 7]) == [1, 2, 3, 4, 10]


@pytest.mark.anyio
@pytest.mark.parametrize("nonsense", [0, -1, True, 2.0, "3", None, MAX_COUNT])
async def test_what_is_no_count_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, nonsense: object
) -> None:
    assert await told(monkeypatch, [1, nonsense, 3]) == [1, 2, 3]
    largest = MAX_COUNT - 1
    assert await told(monkeypatch, [largest]) == [largest]


@pytest.mark.anyio
async def test_none_is_asked_for_and_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that has forgotten all says 0, and what others ask from then on is added."""
    async with opened("redis://127.0.0.1:1") as rates:  # is never reached
        redis = SimpleNamespace(incr=AsyncMock(side_effect=[5, 3]), get=AsyncMock(return_value=0))
        monkeypatch.setattr(rates, "_shared", redis)
        told = [(await rates.count("key", FIVE, n)).count for n in (1, 0, 1)]
        assert told == [5, 5, 8]
        assert [call.args[1:] for call in redis.incr.await_args_list] == [(86_400, 1)] * 2
        redis.get.assert_awaited_once()


@pytest.mark.anyio
async def test_redis_is_asked_once_for_each_count() -> None:
    async with opened("redis://127.0.0.1:1") as rates:
        assert rates._pool is not None
        assert rates._pool.connection_kwargs["retry"].get_retries() == 0
