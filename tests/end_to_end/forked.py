"""`vouch-serve` forked from a process that has imported it: importing takes longer than serving.

It is the real entry point with the arguments, variables, signals and exit codes of a process of
its own; only its modules were read before.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

PRELOADED = (
    "service.__main__",
    "service.app",
    "service.http.server",
    "uvicorn",
    "index_builder.indexing.decoders",
    __name__,
)
"""What the process that forks imports: all that a service needs, also what its parent does not, and
what the indexer's decoders do."""


class Forked:
    """A process as `subprocess.Popen` shows it."""

    def __init__(self, arguments: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self._process = fork_server().Process(
            target=_serve,
            args=(list(arguments), log.absolute(), Path.cwd(), dict(env)),
            daemon=True,
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("vouch-serve", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()


def fork_server() -> ForkServerContext:
    """Return the context of processes that are forked from the one that has imported it all."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _serve(arguments: list[str], log: Path, folder: Path, env: dict[str, str]) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["vouch-serve", *arguments]

    from service.__main__ import main

    main()
