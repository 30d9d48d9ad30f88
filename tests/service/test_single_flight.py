"""Work that several ask for is done once, for as long as somebody waits."""

from __future__ import annotations

import asyncio

import pytest

from service.encoding.cache import SingleFlight

pytestmark = pytest.mark.anyio


class Work:
    """Counts its beginnings and ends; goes on when it is let."""

    def __init__(self) -> None:
        self.begun = self.ended = self.cancelled = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.ended += 1
        return self.begun


async def begin(flights: SingleFlight[int], work: Work, n: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(flights.do("key", work)) for _ in range(n)]
    await asyncio.sleep(0.01)
    return tasks


async def test_it_is_done_once_for_all_and_anew_afterwards() -> None:
    flights, work = SingleFlight[int](), Work()
    tasks = await begin(flights, work, 5)
    work.may_end.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    assert await flights.do("key", work) == 2


async def test_other_keys_are_other_work() -> None:
    flights, work = SingleFlight[int](), Work()
    work.may_end.set()
    assert sorted(await asyncio.gather(*(flights.do(key, work) for key in "abc"))) == [1, 2, 3]


async def test_who_leaves_takes_it_from_nobody() -> None:
    flights, work = SingleFlight[int](), Work()
    first, *others = await begin(flights, work, 3)
    first.cancel()
    await asyncio.sleep(0.01)
    work.may_end.set()
    assert await asyncio.gather(*others) == [1, 1]
    assert work.cancelled == 0


async def test_it_ends_with_the_last_who_leaves_and_begins_anew_for_the_next() -> None:
    flights, work = SingleFlight[int](), Work()
    for task in await begin(flights, work, 3):
        task.cancel()
    await asyncio.sleep(0.01)
    assert (work.begun, work.cancelled) == (1, 1)
    work.may_end.set()
    assert await flights.do("key", work) == 2


async def test_a_failure_is_everybodys_and_is_not_kept() -> None:
    flights = SingleFlight[int]()
    attempts = 0

    async def fails() -> int:
        nonlocal attempts
        attempts += 1
        await asyncio.sleep(0.01)
        raise ValueError("no")

    answers = await asyncio.gather(
        *(flights.do("key", fails) for _ in range(3)), return_exceptions=True
    )
    assert [str(answer) for answer in answers] == ["no"] * 3
    assert attempts == 1
    with pytest.raises(ValueError, match="no"):
        await flights.do("key", fails)
    assert attempts == 2


async def test_work_that_was_given_up_and_ends_late_is_not_what_was_begun_since() -> None:
    flights, work, ends = SingleFlight[int](), Work(), asyncio.Event()

    async def clings() -> int:
        try:
            return await asyncio.Future()
        finally:
            await ends.wait()

    left = asyncio.create_task(flights.do("key", clings))
    await asyncio.sleep(0.01)
    left.cancel()
    [first] = await begin(flights, work, 1)
    ends.set()
    await asyncio.sleep(0.01)
    [second] = await begin(flights, work, 1)
    work.may_end.set()
    assert [await first, await second] == [1, 1]
