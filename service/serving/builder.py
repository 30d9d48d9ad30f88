"""Runs `vouch-build` in separate processes; the service does not import the index builder.

The command publishes a new bundle, which the service then activates.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path

from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import locate
from model_store.bundles.galleries import GalleryFolder
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.signatures import UNSIGNED, Signing
from model_store.errors import WriteError, WriteRefused
from model_store.installation import how_to_install
from model_store.programs import PREFIX


def installed_command() -> tuple[str, ...]:
    """Return the command that calibrates a bundle directory; empty if it is not installed."""
    command = builder_command("sklearn", "typer")
    return (*command, "calibrate") if command else ()


class CalibrateCommand:
    """Calibrates one gallery at a time.

    Parameters
    ----------
    command : command that takes the bundle directory as its last argument; empty if it is not
        installed; None for the installed `vouch-build`, which is looked for at the first use.
    signing : how new bundles are signed.
    decisions : feedback file; a refit uses the reviewed queries of the random draws as evidence.
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        signing: Signing = UNSIGNED,
        decisions: Path | None = None,
    ) -> None:
        self._given = command
        self.signing, self._decisions = signing, decisions
        self._turn = asyncio.Lock()

    @cached_property
    def _command(self) -> tuple[str, ...]:
        return installed_command() if self._given is None else tuple(self._given)

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
        variables = {}
        if self.signing.key_file is not None:
            variables["VOUCH_SIGNING_KEY"] = str(self.signing.key_file)
        options = [
            f"--{name.replace('_', '-')}={value!r}" for name, value in (promises or {}).items()
        ]
        is_refit = bundle.retriever.calibration is not None
        if is_refit and self._decisions is not None and self._decisions.exists():
            options += ["--decisions", str(self._decisions)]
        async with self._turn:
            return await run_builder([*self._command, *options, str(bundle.root)], variables)


logger = logging.getLogger(__name__)

_SAID_BYTES = 2000
"""Maximum bytes of a failed process's output. A longer output is cut at the start."""

_ERROR = "error: "
"""What a command prints before the reason of a failure."""

_NOT_INSTALLED = (
    "There is no gallery whose encoder the new gallery could use, and `vouch-build`, which has an "
    "encoder, is not installed beside the service. {how} Then send the request again. Or start the "
    "service with a bundle."
)
_FAILED = (
    "`vouch-build new` failed, so no gallery was created. The log of the service has the reason."
)


def builder_command(*needed: str) -> tuple[str, ...]:
    """Return the command that runs the installed `vouch-build`.

    Parameters
    ----------
    needed : modules that the command needs; if one is not installed, the result is empty.
    """
    if any(importlib.util.find_spec(name) is None for name in needed):
        return ()
    return sys.executable, "-m", "index_builder.__main__"


async def run_builder(
    command: Sequence[str], variables: Mapping[str, str] | None = None
) -> str | None:
    """Run a command of `vouch-build`; return the reason of a failure, or None.

    The process gets one thread, so that requests keep the other processors. If the caller is
    cancelled, the process ends.

    Parameters
    ----------
    variables : environment variables to add.
    """
    # The service reads its variables in any case, and the command only in upper case.
    own = {
        name.upper() if name.upper().startswith(PREFIX) else name: value
        for name, value in os.environ.items()
    }
    process = subprocess.Popen(  # noqa: S603, ASYNC220 - asyncio would also block here
        command,
        env={**own, "OMP_NUM_THREADS": "1", **(variables or {})},
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


@asynccontextmanager
async def empty_bundle(folder: GalleryFolder) -> AsyncIterator[tuple[Path, Manifest]]:
    """Yield an empty bundle with the encoder that comes with Vouch: its directory and manifest.

    Parameters
    ----------
    folder : folder of the galleries; the bundle is removed from it at the end.

    Raises
    ------
    WriteRefused : `vouch-build` is not installed beside the service.
    WriteError : the folder cannot be written, or `vouch-build` failed; the log has the reason.
    """
    command = builder_command("onnx", "typer")
    if not command:
        raise WriteRefused(_NOT_INSTALLED.format(how=how_to_install("build")))
    with folder.work_folder() as place:
        reason = await run_builder([*command, "new", "first", "--bundles", str(place)])
        if reason is not None:
            logger.error("no empty bundle was built", extra={"fields": {"reason": reason}})
            raise WriteError(_FAILED)
        directory = locate(place)
        yield directory, await asyncio.to_thread(read_manifest, directory)
