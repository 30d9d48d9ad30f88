"""Fair scheduling: a caller with many requests delays only its own requests."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextvars import ContextVar
from dataclasses import dataclass

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
        turn = _Turn(min(n_places, self._n_places), asyncio.get_running_loop().create_future())
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
                self._n_free -= turn.n_places
                self._held[who] += turn.n_places
                turn.come.set_result(None)
                self._waiting.move_to_end(who)
                return True
        return False

    def _is_within_share(self, who: str, n_places: int) -> bool:
        return who not in self._held or self._held[who] + n_places <= self._most
