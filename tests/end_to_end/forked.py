"""Our commands forked from a process that has imported them: importing takes longer than serving.

They are the real entry points with the arguments, variables, signals and exit codes of a process of
their own; only their modules were read before.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tests.support.unprivileged import give_up_privilege

PRELOADED = (
    "service.start",
    "service.app",
    "service.http.server",
    "uvicorn",
    "index_builder.indexing.engines",
    __name__,
)
"""What the process that forks imports: all that a service needs, also what its parent does not, and
what the indexer's decoders do."""


SERVE, BUILD = "service.__main__", "index_builder.__main__"
"""Modules of commands: of `vouch-serve` and of `vouch-build`."""


class Forked:
    """A process as `subprocess.Popen` shows it.

    Parameters
    ----------
    log : what it writes goes there, or what it writes as errors to ``errors``.
    module : of the command.
    unprivileged : whether the permissions of files hold for it, though root has started it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        env: Mapping[str, str],
        errors: Path | None = None,
        *,
        module: str = SERVE,
        unprivileged: bool = False,
    ) -> None:
        written = log.absolute(), (errors or log).absolute()
        self._process = fork_server().Process(
            target=_run,
            args=(module, list(arguments), written, Path.cwd(), dict(env), unprivileged),
            daemon=module == SERVE,  # what ends by itself may have processes of its own
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


def completed(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    module: str = SERVE,
    unprivileged: bool = False,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself, as `subprocess.run` does."""
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder) / name for name in ("output", "errors")]
        process = Forked(arguments, said[0], env, said[1], module=module, unprivileged=unprivileged)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        texts = [path.read_text(encoding="utf-8") for path in said]
    return subprocess.CompletedProcess([module, *arguments], status, *texts)


def _run(
    module: str,
    arguments: list[str],
    written: tuple[Path, Path],
    folder: Path,
    env: dict[str, str],
    unprivileged: bool,
) -> None:
    # The fork server inherits a blocked SIGINT if an indexer in this process started it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for number, path in enumerate(written, 1):
        with path.open("ab") as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [module, *arguments]
    if unprivileged:
        give_up_privilege()
    import_module(module).main()
