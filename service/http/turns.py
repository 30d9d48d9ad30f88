"""Turns of the event loop, each for one piece of work, so that a crowd delays nobody else."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

NEWCOMERS_FIRST_S = 0.005
"""For which nothing else is begun while connections come in: the loop accepts one a turn, and
behind a crowd of them somebody may wait who has only a short question."""

Turn = asyncio.Future[None]


class Turns:
    """Lines of work that waits to be begun; every line has its turn.

    What is asked for alone does not wait. Of much that arrives at once one piece is begun in each
    turn of the event loop, so that what arrives meanwhile is taken in between.

    Parameters
    ----------
    shorter : goes before, as newcomers do: work that is short beside this.
    """

    def __init__(self, shorter: Turns | None = None) -> None:
        self._shorter = shorter
        self._lines: dict[str, deque[Turn]] = {}
        self._is_working = self._is_crowded = self._has_begun_one = False
        self._since = 0.0

    def newcomer(self) -> None:
        """Note that a connection has come."""
        self._is_crowded = True

    def ask(self, line: Callable[[], str]) -> Turn:
        """Return what is done when work may begin; whoever has gone sets it done.

        Parameters
        ----------
        line : names the line, where there is somebody to wait for.
        """
        turn = asyncio.get_running_loop().create_future()
        name = line() if self._is_working else ""
        self._lines.setdefault(name, deque()).append(turn)
        if not self._is_working:
            self._is_working = True
            self._work()
        return turn

    def _work(self) -> None:
        now = time.monotonic()
        if self._has_begun_one:  # in the turn before, of which this is the end
            self._since = now
        others_first = self._is_crowded or (self._shorter is not None and self._shorter._lines)
        waits = others_first and now < self._since + NEWCOMERS_FIRST_S
        self._is_crowded = self._has_begun_one = False
        if not waits:
            turn = self._next()
            if turn is None:
                self._is_working = False
                return
            turn.set_result(None)
            self._has_begun_one = True
        asyncio.get_running_loop().call_soon(self._work)

    def _next(self) -> Turn | None:
        """The first of the line that has waited longest, which then waits behind the others."""
        while self._lines:
            line = next(iter(self._lines))
            turns = self._lines.pop(line)
            while turns and turns[0].done():
                turns.popleft()
            if turns:
                turn = turns.popleft()
                if turns:
                    self._lines[line] = turns
                return turn
        return None
