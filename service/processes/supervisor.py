"""Several processes that answer for one service: started, watched, started again, ended."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger("service")

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
"""Seconds before a process is started again: doubled each time, unless it has lived for a while."""

LONG_LIFE_S = 60.0
"""Seconds of life after which a death is no sign of one that cannot live."""

PATIENCE_S = 5.0
"""Seconds that processes may take to end beyond those that they give their requests."""


@dataclass(eq=False, slots=True)
class Child:
    """A process that was started.

    Attributes
    ----------
    ready : number of a pipe that it writes to as soon as it answers; closed when it ends.
    """

    process: subprocess.Popen[bytes]
    ready: int
    since: float = field(default_factory=time.monotonic)

    def wait_until_ready(self) -> bool:
        """Wait until it answers; False where it has ended instead."""
        return bool(os.read(self.ready, 1))


@dataclass(eq=False, slots=True)
class _Place:
    """The place of one process: who has it, and when it is to be started again."""

    child: Child | None = None
    pause_s: float = field(default_factory=lambda: FIRST_PAUSE_S)
    due: float = 0.0


class Supervisor:
    """Keeps ``n`` processes at work until a signal ends them, which it passes on.

    Parameters
    ----------
    start : starts the process of a place, 0 to n − 1.
    lost : told of the id of a process that has ended.
    ending : called before the processes are told to end.
    grace_s : that they give requests in flight.
    """

    def __init__(
        self,
        n: int,
        start: Callable[[int], Child],
        lost: Callable[[int], None],
        ending: Callable[[], None],
        grace_s: float,
    ) -> None:
        self._start, self._lost, self._ending = start, lost, ending
        self._grace_s = grace_s
        self._places = [_Place() for _ in range(n)]
        self._woken = threading.Event()
        self._ends = False

    def run(self) -> bool:
        """Start the first process, then the others; return when all have ended.

        Returns
        -------
        False if the first has ended before it answered; it has said why.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        signal.signal(signal.SIGCHLD, lambda *_: self._woken.set())
        try:
            first = self._places[0].child = self._start(0)
            if not first.wait_until_ready() and not self._ends:
                return False
            while not self._ends:
                self._look()
                self._woken.wait(self._until_due())
                self._woken.clear()
        finally:
            self._end_all()
        return True

    def _end(self, *_: object) -> None:
        if not self._ends:
            self._ends = True
            self._ending()
            for child in self._children():
                child.process.terminate()
            self._woken.set()

    def _children(self) -> list[Child]:
        return [place.child for place in self._places if place.child is not None]

    def _look(self) -> None:
        """Bury who has died, and start whose time has come."""
        now = time.monotonic()
        for which, place in enumerate(self._places):
            child = place.child
            if child is not None and child.process.poll() is not None:
                lived_s = now - child.since
                place.pause_s = FIRST_PAUSE_S if lived_s > LONG_LIFE_S else place.pause_s
                place.child, place.due = None, now + place.pause_s
                place.pause_s = min(2 * place.pause_s, LONGEST_PAUSE_S)
                self._bury(child)
            if place.child is None and place.due <= now and not self._ends:
                self._try(which, place)

    def _try(self, which: int, place: _Place) -> None:
        try:
            place.child = self._start(which)
        except OSError:  # such as no memory for a process
            logger.exception("no process can be started")
            place.due = time.monotonic() + place.pause_s
            place.pause_s = min(2 * place.pause_s, LONGEST_PAUSE_S)

    def _bury(self, child: Child) -> None:
        os.close(child.ready)
        self._lost(child.process.pid)
        fields = {"pid": child.process.pid, "exit_status": child.process.returncode}
        logger.error("process lost", extra={"fields": fields})

    def _until_due(self) -> float | None:
        dues = [place.due for place in self._places if place.child is None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _end_all(self) -> None:
        """Tell all of them to end, also one that was just started; end those that do not."""
        until = time.monotonic() + self._grace_s + PATIENCE_S
        for child in self._children():
            child.process.terminate()
            try:
                child.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
