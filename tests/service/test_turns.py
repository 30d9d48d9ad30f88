"""Requests begin in turn, whoever sends very many."""

from __future__ import annotations

import asyncio

import pytest

from service.http.turns import NEWCOMERS_FIRST_S, Turns

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that a test moves on; by the real one a busy machine lets moments pass."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("service.http.turns.time", clock)
    return clock


async def turns_until(turn: asyncio.Future[None]) -> int:
    """Count the turns of the event loop until a request may begin."""
    n_turns = 0
    while not turn.done():
        await asyncio.sleep(0)
        n_turns += 1
    return n_turns


async def test_a_request_alone_does_not_wait() -> None:
    turns = Turns()
    for _ in range(3):
        assert turns.ask(lambda: "a").done()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_of_many_one_begins_in_each_turn() -> None:
    turns = Turns()
    asked = [turns.ask(lambda: "a") for _ in range(50)]
    for n_begun in range(1, 50):
        assert sum(turn.done() for turn in asked) == n_begun
        assert asked[n_begun - 1].done()
        await asyncio.sleep(0)


async def test_another_line_waits_behind_one_alone() -> None:
    turns = Turns()
    crowd = [turns.ask(lambda: "a") for _ in range(50)]
    assert await turns_until(turns.ask(lambda: "b")) <= 2
    assert sum(turn.done() for turn in crowd) <= 3


async def test_whoever_has_gone_takes_no_turn() -> None:
    turns = Turns()
    asked = [turns.ask(lambda: "a") for _ in range(50)]
    for turn in asked[1:-1]:
        turn.set_result(None)
    assert await turns_until(asked[-1]) == 1


async def test_connections_that_come_go_first_for_a_moment(clock: Clock) -> None:
    turns = Turns()
    asked = [turns.ask(lambda: "a") for _ in range(50)]
    for _ in range(100):
        clock.now += NEWCOMERS_FIRST_S / 10
        turns.newcomer()
        await asyncio.sleep(0)
    assert 2 <= sum(turn.done() for turn in asked) <= 12


async def test_shorter_work_goes_before_for_a_moment() -> None:
    readings = Turns()
    turns = Turns(shorter=readings)
    for _ in range(10):
        readings.ask(lambda: "a")
    asked = [turns.ask(lambda: "a") for _ in range(10)]
    assert not any(turn.done() for turn in asked[1:])
    for _ in range(9):
        assert sum(turn.done() for turn in asked) <= 1
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(turn.done() for turn in asked) >= 2


async def test_shorter_work_alone_keeps_nobody_waiting() -> None:
    readings = Turns()
    turns = Turns(shorter=readings)
    for _ in range(3):
        assert readings.ask(lambda: "a").done()
        assert turns.ask(lambda: "a").done()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
