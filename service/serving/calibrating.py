"""Runs `vouch-build calibrate`, if it is installed.

The command publishes a new bundle, which the service then activates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from model_store.bundles.bundle import Bundle
from service.serving.builder import builder_command, run_builder


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
    signing_key : file of the private key that signs new bundles.
    decisions : feedback file; a refit uses the reviewed queries of the random draws as evidence.
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        signing_key: Path | None = None,
        decisions: Path | None = None,
    ) -> None:
        self._given = command
        self._signing_key, self._decisions = signing_key, decisions
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
        if self._signing_key is not None:
            variables["VOUCH_SIGNING_KEY"] = str(self._signing_key)
        options = [
            f"--{name.replace('_', '-')}={value!r}" for name, value in (promises or {}).items()
        ]
        is_refit = bundle.retriever.calibration is not None
        if is_refit and self._decisions is not None and self._decisions.exists():
            options += ["--decisions", str(self._decisions)]
        async with self._turn:
            return await run_builder([*self._command, *options, str(bundle.root)], variables)
