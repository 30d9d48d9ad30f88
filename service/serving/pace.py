"""Work that is quick enough for the event loop, by its recent times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

QUICK_S = 2e-3
"""Processor time below which work is quick: to hand it to a thread, where threads wait for one
another, would cost about as much as the work itself."""

LATE_S = 10e-3
"""Time by the clock: work that has kept the event loop for longer is done on threads again."""

N_QUICK = 16
"""Times in a row that work has to be quick before it is done in the event loop."""


class Pace:
    """Estimates from recent times whether some work is quick; starts without knowing.

    It is once it has taken less than `QUICK_S` of a processor `N_QUICK` times in a row, and so
    little by the clock at least once: what always waits, such as for a disk, is not quick, however
    little it computes; what shares its processors with others is.
    """

    def __init__(self) -> None:
        self._n_quick = 0
        self._was_prompt = False

    @property
    def is_quick(self) -> bool:
        """True where the work belongs in the event loop."""
        return self._was_prompt and self._n_quick >= N_QUICK

    def on_thread(self, work: Callable[[], T]) -> T:
        """Do ``work`` on a thread, and note what it took."""
        began, computed = time.perf_counter(), time.thread_time()
        outcome = work()
        if time.thread_time() - computed < QUICK_S:
            self._n_quick += 1
            self._was_prompt |= time.perf_counter() - began < QUICK_S
        else:
            self._start_again()
        return outcome

    def at_once(self, work: Callable[[], T]) -> T:
        """Do ``work`` in the event loop, and note whether it was late."""
        began = time.perf_counter()
        try:
            return work()
        finally:
            if time.perf_counter() - began > LATE_S:
                self._start_again()

    def _start_again(self) -> None:
        self._n_quick, self._was_prompt = 0, False
