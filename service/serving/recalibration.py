"""Refits stale calibrations.

A calibration is stale after too many changes. A refit is also needed after labels were added or
deleted. Until the refit, queries that show an added label get no match. Queries that show a deleted
label have no match in the gallery.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from model_store.bundles.bundle import Bundle
from model_store.bundles.item_features import ITEM_FEATURES_FILE
from service.serving.calibrating import CalibrateCommand
from service.serving.engine import SearchEngine

logger = logging.getLogger(__name__)

RETRY_S = 3600.0
"""Seconds between a failed refit of a bundle and the next attempt."""

LABELS_S = 600.0
"""Minimum seconds between two refits for changed labels; each refit writes a new bundle."""


@dataclass(slots=True)
class _Attempt:
    bundle_id: str
    at: float
    succeeded: bool = False


class Recalibrator:
    """Starts one process at a time, for the first gallery that needs a refit.

    Parameters
    ----------
    command : the command that calibrates; if it is not installed, nothing is refitted.
    period_s : seconds between checks.
    """

    def __init__(self, command: CalibrateCommand, period_s: float) -> None:
        self._command = command
        self._period_s = period_s
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
        if not self._command.is_installed or root is None:
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
        reason = await self._command.run(bundle)
        fields = {"gallery": name, "bundle": bundle.manifest.id, "seconds": time.monotonic() - now}
        attempt.succeeded = reason is None
        if attempt.succeeded:
            logger.info("calibrated again", extra={"fields": fields})
        else:
            fields["reason"] = reason
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
