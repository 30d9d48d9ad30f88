"""Callers that take all they can get, and those beside them."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from model_store.errors import DeadlineExceeded, ImageTooCostly
from model_store.images import Preprocessing
from model_store.images.decode import DecodingBudget
from model_store.sqlite import interrupted_when_late, wanted_until
from service.decoding.decoder import DecoderPool
from service.scheduling import FairShare, caller
from tests.end_to_end.questions import picture
from tests.support.hostile_images import scan_bomb
from tests.support.waiting import TIMEOUT_S

pytestmark = pytest.mark.anyio


def of(who: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
    """Do something on behalf of a caller."""

    async def doing() -> Any:
        caller.set(who)
        return await work()

    return asyncio.create_task(doing())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_caller_never_has_the_last_of_several_places() -> None:
    share = FairShare(3)
    greedy = [of("greedy", share.enter) for _ in range(10)]
    await settle()
    assert sum(task.done() for task in greedy) == 2
    modest = of("modest", share.enter)
    await settle()
    assert modest.done()
    share.leave("modest")
    await settle()
    assert sum(task.done() for task in greedy) == 2, "what others left is kept for others"
    share.leave("greedy")
    await settle()
    assert sum(task.done() for task in greedy) == 3
    for task in greedy:
        task.cancel()


async def test_it_is_idle_once_the_last_place_is_given_back() -> None:
    share = FairShare(2, most=2)
    await asyncio.wait_for(share.idle(), TIMEOUT_S)
    one, other = await share.enter(), await share.enter()
    idle = asyncio.create_task(share.idle())
    share.leave(one)
    await settle()
    assert not idle.done()
    assert not share.is_idle
    share.leave(other)
    await asyncio.wait_for(idle, TIMEOUT_S)
    assert share.is_idle


async def test_a_single_place_goes_round() -> None:
    share = FairShare(1)
    entered: list[str] = []

    async def work() -> None:
        who = await share.enter()
        entered.append(who)
        await asyncio.sleep(0)
        share.leave(who)

    tasks = [of(who, work) for who in "aaaabbc"]
    await asyncio.gather(*tasks)
    assert entered == [*"aabcaba"]


async def test_who_does_not_wait_any_longer_takes_no_place() -> None:
    share = FairShare(1)
    await of("first", share.enter)
    gone, stays = of("gone", share.enter), of("stays", share.enter)
    await settle()
    gone.cancel()
    await settle()
    share.leave("first")
    assert await stays == "stays"
    share.leave("stays")
    assert await of("gone", share.enter) == "gone"


async def test_a_turn_that_comes_as_it_is_given_up_is_passed_on() -> None:
    share = FairShare(1)
    await of("first", share.enter)
    gone, stays = of("gone", share.enter), of("stays", share.enter)
    await settle()
    share.leave("first")
    gone.cancel()
    assert await asyncio.wait_for(stays, TIMEOUT_S) == "stays"


class TestSeveralPlacesAtOnce:
    async def test_are_waited_for_and_nobody_overtakes(self) -> None:
        share = FairShare(10, most=8)
        assert await of("small", lambda: share.enter(3)) == "small"
        large = of("large", lambda: share.enter(8))
        await settle()
        late = of("late", lambda: share.enter(1))
        await settle()
        assert not large.done()
        assert not late.done(), "it would keep the large one waiting for ever"
        share.leave("small", 3)
        await settle()
        assert large.done()
        assert late.done()

    async def test_of_one_caller_are_no_more_than_its_share(self) -> None:
        share = FairShare(10, most=5)
        first, second = (of("greedy", lambda: share.enter(4)) for _ in range(2))
        await settle()
        assert first.done()
        assert not second.done()
        assert await of("modest", lambda: share.enter(6)) == "modest"
        share.leave("greedy", 4)
        await settle()
        assert second.done()

    async def test_beyond_all_there_are_are_all(self) -> None:
        share = FairShare(10, most=5)
        assert await of("one", lambda: share.enter(100)) == "one"
        other = of("other", lambda: share.enter(1))
        await settle()
        assert not other.done()
        share.leave("one", 100)
        await settle()
        assert other.done()
        share.leave("other", 1)
        assert share.is_idle

    async def test_left_together_are_given_to_all_that_they_are_enough_for(self) -> None:
        share = FairShare(10, most=10)
        await of("first", lambda: share.enter(10))
        waiting = [of("second", lambda: share.enter(4)) for _ in range(3)]
        await settle()
        share.leave("first", 10)
        await settle()
        assert [task.done() for task in waiting] == [True, True, False]
        waiting[2].cancel()

    async def test_that_are_not_waited_for_any_longer_keep_nobody_waiting(self) -> None:
        share = FairShare(10, most=8)
        await of("small", lambda: share.enter(3))
        large, late = of("large", lambda: share.enter(8)), of("late", lambda: share.enter(1))
        await settle()
        large.cancel()
        await settle()
        assert late.done()


@pytest.mark.process
async def test_costly_images_of_one_caller_keep_nobody_waiting() -> None:
    """As many as there are decoders, and more: each takes a second of computing."""
    costly, plain = scan_bomb(3_000), picture("PNG")
    preprocessing = Preprocessing(8, 8)
    async with DecoderPool(2, budget=DecodingBudget(cpu_s=1.0)) as pool:
        flood = [of("greedy", lambda: pool.decode(costly, preprocessing)) for _ in range(4)]
        await settle()
        for _ in range(5):
            await asyncio.wait_for(of("modest", lambda: pool.decode(plain, preprocessing)), 60)
        assert not all(task.done() for task in flood)
        outcomes = await asyncio.gather(*flood, return_exceptions=True)
        assert all(isinstance(outcome, ImageTooCostly) for outcome in outcomes)
        # Decoders that were lost have given their places back.
        await asyncio.wait_for(of("greedy", lambda: pool.decode(plain, preprocessing)), 60)


def test_a_database_is_not_asked_past_the_deadline() -> None:
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
    connection = sqlite3.connect(":memory:")
    token = wanted_until.set(time.monotonic() + 0.2)
    try:
        with pytest.raises(DeadlineExceeded), interrupted_when_late(connection):
            connection.execute(endless).fetchone()
        wanted_until.set(time.monotonic() + 60)
        with pytest.raises(sqlite3.OperationalError), interrupted_when_late(connection):
            connection.execute("SELECT nothing").fetchone()
    finally:
        wanted_until.reset(token)
    connection.close()
