"""Threads that search and decide, shared fairly between callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from typing import TypeVar

from service.fair_share import FairShare

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
