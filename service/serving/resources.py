"""The parts that all engines of a service share, and the threads that search and decide."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from model_store.feedback import AnsweredQueries, FeedbackLog, ReviewQueue
from service.decoding.decoder import Decoder
from service.encoding.cache import Cache
from service.encoding.queues import BatchLimits, EncoderQueues
from service.fair_share import FairShare
from service.observability.metrics import Telemetry
from service.settings import OnDrift

from .reviewing import NOTHING_REVIEWED, ReviewTerms

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class EngineResources:
    """The objects that all engines of a service share.

    Attributes
    ----------
    cache : cache of predictive distributions.
    decoder : turns uploads into the encoder's input, in separate processes that may crash.
    threads : threads that search and decide.
    telemetry : metrics of all galleries.
    batches : limits on the size of encoder batches.
    feedback : stores users' feedback and the state of drift tests.
    audit_share : share of matches to draw for review, if feedback is stored.
    on_drift : see `SearchEngine.on_drift`.
    answered : store of the embeddings of queries; None if queries are only in the cache.
    reviews, review_terms : the review queue and its options; None without a review queue.
    queues : batch queues of the encoders.
    """

    cache: Cache
    decoder: Decoder
    threads: Threads
    telemetry: Telemetry
    batches: BatchLimits = field(default_factory=BatchLimits)
    feedback: FeedbackLog | None = None
    audit_share: float = 0.0
    on_drift: OnDrift = "warn"
    answered: AnsweredQueries | None = None
    reviews: ReviewQueue | None = None
    review_terms: ReviewTerms = NOTHING_REVIEWED
    queues: EncoderQueues = field(default_factory=EncoderQueues)
