"""Which work is done in the event loop, by what it took lately."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.scheduling import LATE_S, N_LATE, N_RUNS, QUICK_S, Pace


class Clocks:
    """The clock and the processor's time, in seconds that the test passes."""

    def __init__(self) -> None:
        self.clock = self.computed = 0.0

    def perf_counter(self) -> float:
        return self.clock

    def thread_time(self) -> float:
        return self.computed

    def passing(self, clock: float, computed: float) -> Callable[[], str]:
        """Return work that takes so long."""

        def work() -> str:
            self.clock += clock
            self.computed += computed
            return "done"

        return work


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr("service.scheduling.time", clocks)
    return clocks


@pytest.fixture
def quick(clocks: Clocks) -> Callable[[], str]:
    return clocks.passing(QUICK_S / 2, QUICK_S / 2)


def after(*works: Callable[[], str]) -> Pace:
    pace = Pace()
    for work in works:
        assert pace.on_thread(work) == "done"
    return pace


def test_it_is_quick_after_so_many_runs(quick: Callable[[], str]) -> None:
    assert not after(*[quick] * (N_RUNS - 1)).is_quick
    assert after(*[quick] * N_RUNS).is_quick


def test_a_quarter_of_the_runs_shows_what_it_costs_without_others(
    clocks: Clocks, quick: Callable[[], str]
) -> None:
    disturbed = clocks.passing(10 * QUICK_S, 2 * QUICK_S)
    enough, few = N_RUNS // 4, N_RUNS // 4 - 1
    assert after(*[disturbed] * (N_RUNS - enough), *[quick] * enough).is_quick
    assert not after(*[disturbed] * (N_RUNS - few), *[quick] * few).is_quick


def test_it_is_judged_anew_after_so_many_runs(clocks: Clocks, quick: Callable[[], str]) -> None:
    slow = clocks.passing(2 * QUICK_S, 2 * QUICK_S)
    assert not after(*[slow] * N_RUNS, *[quick] * (N_RUNS - 1)).is_quick
    assert after(*[slow] * N_RUNS, *[quick] * N_RUNS).is_quick


def test_runs_that_end_on_threads_later_do_not_change_it(
    clocks: Clocks, quick: Callable[[], str]
) -> None:
    slow = clocks.passing(2 * QUICK_S, 2 * QUICK_S)
    assert after(*[quick] * N_RUNS, *[slow] * 2 * N_RUNS).is_quick


def test_one_that_computes_for_long_begins_again(clocks: Clocks, quick: Callable[[], str]) -> None:
    costly = clocks.passing(4 * QUICK_S, 4 * QUICK_S)
    assert not after(*[quick] * N_RUNS, costly).is_quick
    assert not after(costly, *[quick] * (N_RUNS - 1)).is_quick
    assert after(costly, *[quick] * N_RUNS).is_quick


def test_what_waits_for_others_each_time_is_not_quick(
    clocks: Clocks, quick: Callable[[], str]
) -> None:
    waiting = clocks.passing(2 * QUICK_S, QUICK_S / 10)
    assert not after(*[waiting] * 10 * N_RUNS).is_quick
    assert after(*[waiting] * (N_RUNS - 1), quick).is_quick


def test_more_late_runs_than_others_bring_it_back_to_threads(
    clocks: Clocks, quick: Callable[[], str]
) -> None:
    pace = after(*[quick] * N_RUNS)
    late, other = clocks.passing(2 * LATE_S, 0), clocks.passing(LATE_S / 2, LATE_S / 2)
    for work in (late, other) * 2 * N_LATE:
        assert pace.at_once(work) == "done"
        assert pace.is_quick
    for _ in range(N_LATE - 2):
        pace.at_once(late)
    for work in (late, other, late):
        assert pace.is_quick
        pace.at_once(work)
    assert pace.is_quick
    pace.at_once(late)
    assert not pace.is_quick


def test_one_that_fails_late_is_noted_too(clocks: Clocks, quick: Callable[[], str]) -> None:
    pace = after(*[quick] * N_RUNS)
    late = clocks.passing(2 * LATE_S, 0)

    def fail() -> str:
        late()
        raise ValueError("late, and wrong")

    for _ in range(N_LATE):
        with pytest.raises(ValueError, match="late"):
            pace.at_once(fail)
    assert not pace.is_quick
