"""Wait for a state, not for a time: on a busy machine all is late, and nothing else differs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

TIMEOUT_S = 120.0
"""Past this something hangs; a loaded machine is slow, but not that slow."""

PAUSE_S = 0.01


def wait_until(condition: Callable[[], object], check: Callable[[], object] = bool) -> None:
    """Wait until ``condition()`` is true.

    Parameters
    ----------
    check : called between; raises an error if the condition can no longer become true.

    Raises
    ------
    TimeoutError : it has not become true in `TIMEOUT_S`.
    """
    for _ in _looks(condition):
        check()
        time.sleep(PAUSE_S)


async def until(condition: Callable[[], object]) -> None:
    """The same while the event loop goes on."""
    for _ in _looks(condition):
        await asyncio.sleep(PAUSE_S)


def _looks(condition: Callable[[], object]) -> Iterator[None]:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {TIMEOUT_S} s for {condition}")
        yield
