"""Stale calibrations are fitted again, by a separate process.

Some are stale, since too much has changed; others do not know a label that was enrolled, and would
give no match to what shows it, or still know one that was deleted, whose queries are absent now.
Fitting is the index builder's work, which the service does not import: `vouch-build calibrate
BUNDLES` is started where it is installed. What it publishes, the service changes over to as to any
other bundle.
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
"""After which a bundle whose calibration could not be fitted again is tried once more."""

LABELS_S = 600.0
"""Between two fits for the sake of labels alone: each makes a bundle, as a compaction does."""

_SAID_BYTES = 2000
"""Bytes that are logged of a failed process, the last that it said."""


def installed_command() -> tuple[str, ...]:
    """Return what calibrates a directory of bundles; nothing where it is not installed."""
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
    """Starts one process at a time, for the first gallery that needs it.

    Parameters
    ----------
    command : takes the directory of bundles as its last argument; empty: nothing is started.
    period_s : between looks.
    signing_key : file of the key that new bundles are signed with.
    decisions : file of feedback, whose queries that were drawn and decided on are evidence.
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
        """Look at every engine, for ever."""
        while True:
            await asyncio.sleep(self._period_s)
            for engine in engines():
                await self.look(engine)

    async def look(self, engine: SearchEngine) -> bool | None:
        """Calibrate again what needs it; whether it could be, None where there is no need."""
        bundle = engine.bundle
        root, name = bundle.root, bundle.name
        if not self._command or root is None:
            return None
        if not (bundle.directory / ITEM_FEATURES_FILE).exists():
            return None
        if not bundle.retriever.gallery.n_items:  # there is nothing to calibrate with
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
        """Return whether labels have come or gone since the calibration, and no more do."""
        state = bundle.manifest.id, bundle.version
        has_settled = self._seen.get(bundle.name) == state
        self._seen[bundle.name] = state
        if not has_settled or not bundle.retriever.has_other_labels:
            return False
        # One that failed may have been overtaken by a compaction, which learns nothing.
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
