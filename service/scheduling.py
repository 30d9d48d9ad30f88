"""Turns of callers, threads that compute, and tasks that outlive their request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

caller: ContextVar[str] = ContextVar("caller", default="")
"""Account of the current request, a key or an address; empty for the work of the service itself."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A caller's request for ``n_places`` places."""

    n_places: int
    come: asyncio.Future[None]


class FairShare:
    """A limited number of places for concurrent work; waiting callers take turns.

    With two or more places, one caller holds at most ``n_places - 1``, so that one place stays free
    for other callers. While a caller waits for several places, later callers wait too.

    Parameters
    ----------
    n_places : total number of places.
    most : maximum number of places for one caller; by default ``n_places - 1``. If one
        request needs more than ``most`` places, it waits until its caller holds no place.
    """

    def __init__(self, n_places: int, most: int | None = None) -> None:
        self._n_places = self._n_free = n_places
        self._most = max(1, n_places - 1) if most is None else most
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[_Turn]] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_idle(self) -> bool:
        """True if no place is taken."""
        return self._idle.is_set()

    async def idle(self) -> None:
        """Wait until no place is taken."""
        await self._idle.wait()

    async def enter(self, n_places: int = 1) -> str:
        """Wait for ``n_places`` places; if there are fewer places in total, wait for all of them.

        Returns the caller's account, which `leave` needs.
        """
        who = caller.get()
        n = min(n_places, self._n_places)
        if not self._waiting and n <= self._n_free and self._is_within_share(who, n):
            self._take(who, n)
            self._idle.clear()
            return who
        turn = _Turn(n, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(who, deque()).append(turn)
        self._hand_out()
        try:
            await turn.come
        except asyncio.CancelledError:
            if turn.come.done() and not turn.come.cancelled():  # it came at the same moment
                self.leave(who, n_places)
            else:
                self._hand_out()  # requests behind this request may get places
            raise
        return who

    def leave(self, who: str, n_places: int = 1) -> None:
        """Release places, and give them to the next caller."""
        n_given = min(n_places, self._n_places)
        self._n_free += n_given
        self._held[who] -= n_given
        if not self._held[who]:
            del self._held[who]
        self._hand_out()

    def _hand_out(self) -> None:
        while self._hand_to_next():
            pass
        if self._n_free == self._n_places:
            self._idle.set()
        else:
            self._idle.clear()

    def _hand_to_next(self) -> bool:
        """Give places to the next caller; return False if no waiting caller can get places."""
        for who in [*self._waiting]:
            turns = self._waiting[who]
            while turns and turns[0].come.done():  # cancelled while waiting
                turns.popleft()
            if not turns:
                del self._waiting[who]
            elif self._is_within_share(who, turns[0].n_places):
                if turns[0].n_places > self._n_free:
                    return False
                turn = turns.popleft()
                self._take(who, turn.n_places)
                turn.come.set_result(None)
                self._waiting.move_to_end(who)
                return True
        return False

    def _take(self, who: str, n_places: int) -> None:
        self._n_free -= n_places
        self._held[who] += n_places

    def _is_within_share(self, who: str, n_places: int) -> bool:
        return who not in self._held or self._held[who] + n_places <= self._most


async def run_to_its_end(work: Callable[[], T]) -> T:
    """Run ``work`` on a thread; a cancelled caller waits until the work has ended."""
    running = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads that compute, shared fairly between callers.

    Attributes
    ----------
    executor : the threads.
    share : fair share of the threads between callers.
    """

    executor: Executor
    share: FairShare

    async def compute(self, work: Callable[[], T]) -> T:
        """Run ``work`` on a thread; started work finishes even if the caller is cancelled."""
        who = await self.share.enter()
        loop = asyncio.get_running_loop()
        # The context of the request, such as its deadline, is copied to the thread.
        working = self.executor.submit(copy_context().run, work)
        ended = loop.create_future()

        def end() -> None:
            self.share.leave(who)
            if not ended.done():
                ended.set_result(None)

        # One message to the event loop; `asyncio.wrap_future` and a callback would send two.
        working.add_done_callback(lambda _: loop.is_closed() or loop.call_soon_threadsafe(end))
        try:
            await ended
        except asyncio.CancelledError:
            working.cancel()  # unless it has begun
            raise
        return working.result()


QUICK_S = 2e-3
"""Work is quick if it needs less CPU time than this, in seconds. On threads that wait for each
other, the same work needs about twice the CPU time."""

LATE_S = 10e-3
"""Work in the event loop is late if it takes longer than this, in seconds."""

N_RUNS = 16
"""Number of runs on threads before work can run in the event loop."""

N_LATE = 3
"""Work runs on threads again if recent late runs in the event loop outnumber the other runs by this
number. A single run can be late because another process used the CPU."""


class Pace:
    """An estimate, from recent run times, of whether work is quick; new work is not quick.

    Other threads and processes make a run slower, but never quicker. So work is quick if a quarter
    of `N_RUNS` consecutive runs on threads needed less than `QUICK_S` of CPU time, and none needed
    three times as much. At least one of these runs must also be below `QUICK_S` of wall time.
    Therefore work is not quick if every run waits, for example for a disk.
    """

    def __init__(self) -> None:
        self._start_again()

    def _start_again(self) -> None:
        self._n_runs = self._n_quick = self._n_late = 0
        self._was_prompt = False

    @property
    def is_quick(self) -> bool:
        """True if the work can run in the event loop."""
        return self._was_prompt and self._n_runs >= N_RUNS and 4 * self._n_quick >= N_RUNS

    def on_thread(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the current thread, and record its time."""
        began, computed = time.perf_counter(), time.thread_time()
        outcome = work()
        passed, computed = time.perf_counter() - began, time.thread_time() - computed
        if computed >= 3 * QUICK_S:
            self._start_again()
        elif not self.is_quick:
            if self._n_runs >= N_RUNS:
                self._start_again()
            self._n_runs += 1
            self._n_quick += computed < QUICK_S
            self._was_prompt |= passed < QUICK_S
        return outcome

    def at_once(self, work: Callable[[], T]) -> T:
        """Run ``work`` in the event loop, and record whether it was late."""
        began = time.perf_counter()
        try:
            return work()
        finally:
            late = time.perf_counter() - began > LATE_S
            self._n_late = max(self._n_late + (1 if late else -1), 0)
            if self._n_late >= N_LATE:
                self._start_again()


class Tasks(set[asyncio.Task[Any]]):
    """The running tasks of one component; the event loop has only weak references to tasks."""

    def start(
        self, work: Coroutine[Any, Any, T], context: Context | None = None
    ) -> asyncio.Task[T]:
        """Run ``work`` as a task; by default, the task has a copy of the caller's context."""
        task = asyncio.create_task(work, context=context)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def cancel(self) -> None:
        """Cancel the tasks, and wait until they have ended."""
        for task in [*self]:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)
