"""Refits stale calibrations in a separate process.

A calibration is stale after too many changes. A refit is also needed after labels were added or
deleted. Until the refit, queries that show an added label get no match. Queries that show a deleted
label have no match in the gallery. The service does not import the index builder. If `vouch-build`
is installed, the service runs `vouch-build calibrate BUNDLES`. This command publishes a new bundle,
which the service then activates.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from model_store.bundles.bundle import Bundle
from model_store.bundles.item_features import ITEM_FEATURES_FILE
from service.serving.engine import SearchEngine

logger = logging.getLogger(__name__)

RETRY_S = 3600.0
"""Seconds between a failed refit of a bundle and the next attempt."""

LABELS_S = 600.0
"""Minimum seconds between two refits for changed labels; each refit writes a new bundle."""

_SAID_BYTES = 2000
"""Maximum bytes of a failed process's output in a log line. A longer output is cut at the start."""


def installed_command() -> tuple[str, ...]:
    """Return the command that calibrates a bundle directory; empty if it is not installed."""
    needed = ("sklearn", "typer")
    if any(importlib.util.find_spec(name) is None for name in needed):
        return ()
    return sys.executable, "-m", "index_builder.__main__", "calibrate"


@dataclass(slots=True)
class _Attempt:
    bundle_id: str
    at: float
    succeeded: bool = False


class Recalibrator:
    """Starts one process at a time, for the first gallery that needs a refit.

    Parameters
    ----------
    command : command that takes the bundle directory as its last argument; if it is empty, no
        process is started.
    period_s : seconds between checks.
    signing_key : file of the private key that signs new bundles.
    decisions : feedback file; the refit uses the reviewed queries of the random draws as evidence.
    """

    def __init__(
        self,
        command: Sequence[str],
        period_s: float,
        signing_key: Path | None = None,
        decisions: Path | None = None,
    ) -> None:
        self._command = tuple(command)
        self._period_s = period_s
        self._signing_key = signing_key
        self._decisions = decisions
        self._attempts: dict[str, _Attempt] = {}
        self._seen: dict[str, tuple[str, int]] = {}

    async def watch(self, engines: Callable[[], Sequence[SearchEngine]]) -> None:
        """Check every engine in an endless loop."""
        while True:
            await asyncio.sleep(self._period_s)
            for engine in engines():
                await self.look(engine)

    async def look(self, engine: SearchEngine) -> bool | None:
        """Refit a calibration if needed.

        Returns whether the refit succeeded; None if no refit was started.
        """
        bundle = engine.bundle
        root, name = bundle.root, bundle.name
        if not self._command or root is None:
            return None
        if not (bundle.directory / ITEM_FEATURES_FILE).exists():
            return None
        if not bundle.retriever.gallery.n_items:  # an empty gallery cannot be calibrated
            return None
        last = self._attempts.get(name)
        now = time.monotonic()
        if bundle.retriever.stale is None and not self._has_other_labels(bundle, last, now):
            return None
        if last and last.bundle_id == bundle.manifest.id and now - last.at < RETRY_S:
            return None
        self._attempts[name] = attempt = _Attempt(bundle.manifest.id, now)
        code, said = await self._run(root)
        fields = {"gallery": name, "bundle": bundle.manifest.id, "seconds": time.monotonic() - now}
        attempt.succeeded = code == 0
        if attempt.succeeded:
            logger.info("calibrated again", extra={"fields": fields})
        else:
            fields["reason"] = said
            logger.error("not calibrated again", extra={"fields": fields})
        return attempt.succeeded

    def _has_other_labels(self, bundle: Bundle, last: _Attempt | None, now: float) -> bool:
        """Return whether a refit may start now because labels changed after the calibration."""
        state = bundle.manifest.id, bundle.version
        has_settled = self._seen.get(bundle.name) == state
        self._seen[bundle.name] = state
        if not has_settled or not bundle.retriever.has_other_labels:
            return False
        # A compaction may have interrupted the refit, and does not refit: retry without a delay.
        return last is None or not last.succeeded or now - last.at >= LABELS_S

    async def _run(self, root: Path) -> tuple[int, str]:
        """Run the command; return its exit status and the end of its output."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if self._signing_key is not None:
            environment["VOUCH_SIGNING_KEY"] = str(self._signing_key)
        options: tuple[str, ...] = ()
        if self._decisions is not None and self._decisions.exists():
            options = ("--decisions", str(self._decisions))
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *options,
            str(root),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await process.communicate()
        except BaseException:  # the service ends
            process.kill()
            await process.wait()
            raise
        return int(process.returncode or 0), said.decode(errors="replace")[-_SAID_BYTES:]
