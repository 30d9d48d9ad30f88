"""Tasks that continue after the request that started them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


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
