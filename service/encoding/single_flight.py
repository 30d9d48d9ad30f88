"""The same work asked for by several at once is done once."""

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
    """A request for a key that is being computed waits for that outcome.

    The work continues while a request waits for it; it ends when the last of them has gone away.

    Parameters
    ----------
    joined : told of everyone who waits for work that another began.
    """

    def __init__(self, joined: Callable[[], None] = lambda: None) -> None:
        self._flights: dict[str, _Flight[T]] = {}
        self._joined = joined

    async def do(self, key: str, work: Callable[[], Awaitable[T]]) -> T:
        """The outcome of ``work``, or of the work that is under way for ``key``."""
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
        """Close the work to new requests, unless newer work has replaced it."""
        if self._flights.get(key) is flight:
            del self._flights[key]
