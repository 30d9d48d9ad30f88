"""A service of several processes: what its parent gives to each, and does for all."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.multiprocess import mark_process_dead

from service.processes.member import MEMBER, TRIAL, Member
from service.processes.supervisor import Child, Supervisor

logger = logging.getLogger("service")


@dataclass(eq=False)
class Family:
    """The processes of a service, each started by the same command line.

    Parameters
    ----------
    arguments : of `vouch-serve`.
    hub : returns the socket of the encoders for one more process.
    doors : the sockets that all of them listen on; closed before they end.
    """

    arguments: Sequence[str]
    hub: Callable[[], socket.socket]
    doors: Sequence[socket.socket] = ()
    shared: Path = field(init=False)
    n: int = field(init=False)

    def run(self, n: int, grace_s: float) -> bool:
        """Serve until a signal comes; see `Supervisor.run`."""
        with tempfile.TemporaryDirectory(prefix="vouch-") as folder:
            self.shared, self.n = Path(folder), n
            return Supervisor(n, self._start, self._forget, self._close_doors, grace_s).run()

    def tried_out(self) -> int:
        """Return how many processes pay, as one finds out that serves nobody.

        1 if it fails, and has said why.
        """
        with tempfile.TemporaryDirectory(prefix="vouch-") as folder:
            self.shared, self.n = Path(folder), 1
            child = self._launch(TRIAL, 0, {})
            with os.fdopen(child.ready, "rb") as told:
                found = told.read()
            child.process.wait()
        return int(found or 1)

    def _start(self, which: int) -> Child:
        child = self._launch(MEMBER, which, {"PROMETHEUS_MULTIPROC_DIR": str(self.shared)})
        fields = {"pid": child.process.pid, "which": which}
        logger.info("process started", extra={"fields": fields})
        return child

    def _launch(self, role: str, which: int, variables: Mapping[str, str]) -> Child:
        ready, theirs = os.pipe()
        with ExitStack() as stack:
            stack.callback(os.close, theirs)
            hub = stack.enter_context(self.hub())
            doors = [door.fileno() for door in self.doors]
            member = Member(which, self.n, doors, hub.fileno(), theirs, str(self.shared))
            process = subprocess.Popen(  # noqa: S603 # nothing here comes from a request
                [sys.executable, "-P", "-m", "service", role, member.write(), *self.arguments],
                env={
                    **os.environ,
                    **variables,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
                stdin=subprocess.DEVNULL,
                pass_fds=member.numbers,
                process_group=0,  # a keyboard interrupts the parent alone, which passes it on
            )
        return Child(process, ready)

    def _forget(self, pid: int) -> None:
        """Take away what a process has told of itself, but for what it has counted."""
        mark_process_dead(pid, str(self.shared))  # type: ignore[no-untyped-call]
        with suppress(FileNotFoundError):
            (self.shared / told_name(pid)).unlink()

    def _close_doors(self) -> None:
        for door in self.doors:
            door.close()


def told_name(pid: int) -> str:
    """Return the name of the file in which a process tells of itself."""
    return f"told-{pid}.json"
