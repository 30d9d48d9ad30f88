"""Runs `vouch-build calibrate` in a separate process.

The service does not import the index builder. If `vouch-build` is installed, the command publishes
a new bundle, which the service then activates.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from model_store.bundles.bundle import Bundle

_SAID_BYTES = 2000
"""Maximum bytes of a failed process's output. A longer output is cut at the start."""

_ERROR = "error: "
"""What the command prints before the reason of a failure."""


def installed_command() -> tuple[str, ...]:
    """Return the command that calibrates a bundle directory; empty if it is not installed."""
    needed = ("sklearn", "typer")
    if any(importlib.util.find_spec(name) is None for name in needed):
        return ()
    return sys.executable, "-m", "index_builder.__main__", "calibrate"


class CalibrateCommand:
    """Calibrates one gallery at a time.

    Parameters
    ----------
    command : command that takes the bundle directory as its last argument; empty if it is not
        installed.
    signing_key : file of the private key that signs new bundles.
    decisions : feedback file; a refit uses the reviewed queries of the random draws as evidence.
    """

    def __init__(
        self,
        command: Sequence[str],
        signing_key: Path | None = None,
        decisions: Path | None = None,
    ) -> None:
        self._command = tuple(command)
        self._signing_key, self._decisions = signing_key, decisions
        self._turn = asyncio.Lock()

    @property
    def is_installed(self) -> bool:
        """Whether there is a command to run."""
        return bool(self._command)

    async def run(self, bundle: Bundle, promises: Mapping[str, float] | None = None) -> str | None:
        """Calibrate the gallery of ``bundle``; return the reason of a failure, or None.

        If the caller is cancelled, the process ends.

        Parameters
        ----------
        promises : error bounds by the names of `CalibrationReport`, for example ``max_error``; the
            others keep their values.
        """
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if self._signing_key is not None:
            environment["VOUCH_SIGNING_KEY"] = str(self._signing_key)
        options = [
            f"--{name.replace('_', '-')}={value!r}" for name, value in (promises or {}).items()
        ]
        is_refit = bundle.retriever.calibration is not None
        if is_refit and self._decisions is not None and self._decisions.exists():
            options += ["--decisions", str(self._decisions)]
        async with self._turn:
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - asyncio would also block here
                [*self._command, *options, str(bundle.root)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            reading = asyncio.get_running_loop().run_in_executor(None, process.communicate)
            try:
                _, output = await asyncio.shield(reading)
            except BaseException:  # the service ends
                os.killpg(process.pid, signal.SIGKILL)
                await reading
                raise
        if process.returncode == 0:
            return None
        said = output.decode(errors="replace")[-_SAID_BYTES:]
        return said.rpartition(_ERROR)[2].strip() or f"exit status {process.returncode}"
