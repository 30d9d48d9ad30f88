"""Single flight: concurrent calls with one key share one computation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Flight(Generic[T]):
    work: asyncio.Task[T]
    waiting: int = 0


class SingleFlight(Generic[T]):
    """A call waits for a running computation of the same key.

    The computation is cancelled when its last waiting call is cancelled.

    Parameters
    ----------
    joined : callback for each call that joins a running computation.
    """

    def __init__(self, joined: Callable[[], None] = lambda: None) -> None:
        self._flights: dict[str, _Flight[T]] = {}
        self._joined = joined

    async def do(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``, or of the running computation of ``key``."""
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.ensure_future(work()))
            self._flights[key] = flight
            begun = flight
            flight.work.add_done_callback(lambda _: self._remove(key, begun))
        else:
            self._joined()
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.work)
        finally:
            flight.waiting -= 1
            if flight.waiting == 0 and not flight.work.done():
                self._remove(key, flight)
                flight.work.cancel()

    def _remove(self, key: str, flight: _Flight[T]) -> None:
        """Remove the computation of ``key``, unless a newer computation has replaced it."""
        if self._flights.get(key) is flight:
            del self._flights[key]
