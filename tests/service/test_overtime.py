"""Images that take long have their turns at half of the processors."""

from __future__ import annotations

import asyncio

import pytest

from service.decoding import overtime
from service.decoding.overtime import Overtime

pytestmark = pytest.mark.anyio

PATIENCE_S, SLICE_S = 0.02, 0.01


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overtime, "PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(overtime, "SLICE_S", SLICE_S)


class Computing:
    """A decoder that answers when it has computed for so many slices."""

    def __init__(self, n_slices: int, others: list[Computing]) -> None:
        self._left = n_slices
        self._others = others
        self.is_running = True
        self.n_pauses = self.n_most_beside = 0
        others.append(self)

    def pause(self) -> None:
        self.is_running = False
        self.n_pauses += 1

    def go_on(self) -> None:
        self.is_running = True
        running = sum(one.is_running and one.n_pauses > 0 for one in self._others)
        self.n_most_beside = max(self.n_most_beside, running)

    async def answer(self) -> bytes:
        while self._left:
            await asyncio.sleep(SLICE_S)
            self._left -= self.is_running
        self.is_running = False
        return b"an answer"


async def test_a_short_one_never_stands_still() -> None:
    short = Computing(0, [])
    assert await Overtime(8).answer_of(short, short.answer()) == b"an answer"
    assert short.n_pauses == 0


@pytest.mark.parametrize(("n_processors", "n_at_a_time"), [(1, 1), (2, 1), (3, 1), (4, 2)])
async def test_long_ones_compute_on_half_of_the_processors(
    n_processors: int, n_at_a_time: int
) -> None:
    turns, decoders = Overtime(n_processors), list[Computing]()
    work = [Computing(12, decoders) for _ in range(3)]
    answers = await asyncio.gather(*(turns.answer_of(one, one.answer()) for one in work))
    assert answers == [b"an answer"] * 3
    assert max(one.n_most_beside for one in work) == n_at_a_time
    assert all(one.n_pauses > 1 for one in work)


async def test_an_error_is_passed_on_and_the_turn_with_it() -> None:
    async def fails() -> bytes:
        await asyncio.sleep(2 * PATIENCE_S)
        raise EOFError

    turns, decoders = Overtime(2), list[Computing]()
    for _ in range(3):
        with pytest.raises(EOFError):
            await turns.answer_of(Computing(1, decoders), fails())


async def test_one_that_is_given_up_leaves_its_turn() -> None:
    turns, decoders = Overtime(2), list[Computing]()
    endless, other = Computing(10**6, decoders), Computing(12, decoders)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5 * PATIENCE_S):
            await turns.answer_of(endless, endless.answer())
    assert await turns.answer_of(other, other.answer()) == b"an answer"
