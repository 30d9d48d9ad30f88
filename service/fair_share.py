"""Places that callers share: whoever asks for much waits for itself, and for nobody else."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from contextvars import ContextVar

caller: ContextVar[str] = ContextVar("caller", default="")
"""On whose behalf something is done: a key or an address; empty for the service itself."""


class FairShare:
    """Places to work at, which callers are given in turn; the last is never of one who has others.

    Of two or more places one caller holds at most all but one, so that a newcomer never waits for
    anyone else's work to end.

    Parameters
    ----------
    n_places : how many there are.
    """

    def __init__(self, n_places: int) -> None:
        self._n_places = self._n_free = n_places
        self._most = max(1, n_places - 1)
        self._held: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def is_idle(self) -> bool:
        """True while nobody has a place."""
        return self._n_free == self._n_places

    async def enter(self) -> str:
        """Wait for a place; returns who has it now, to be given to `leave`."""
        who = caller.get()
        if self._may_enter(who):
            self._take(who)
            return who
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came at the same moment
                self.leave(who)
            raise
        return who

    def leave(self, who: str) -> None:
        """Give a place back; whose turn it is gets it."""
        self._n_free += 1
        self._held[who] -= 1
        if not self._held[who]:
            del self._held[who]
        self._hand_out()

    def _may_enter(self, who: str) -> bool:
        return self._n_free > 0 and self._held[who] < self._most

    def _take(self, who: str) -> None:
        self._n_free -= 1
        self._held[who] += 1

    def _hand_out(self) -> None:
        for who in [*self._waiting]:
            turns = self._waiting[who]
            while turns and turns[0].done():  # they did not wait for it
                turns.popleft()
            if turns and self._may_enter(who):
                self._take(who)
                turns.popleft().set_result(None)
                self._waiting.move_to_end(who)
            if not turns:
                del self._waiting[who]
