"""Health checks: whether an engine answers canaries, and whether its files are intact."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress

from model_store.errors import NotReady, VouchError
from service.serving.engine import SearchEngine

STALE_AFTER_PERIODS = 3
"""If no canary is answered for this number of periods, the gallery is not ready. A busy service may
miss two canaries."""


logger = logging.getLogger(__name__)


async def look_at_files(engine: SearchEngine) -> None:
    """Record whether a file of the engine's bundle was changed, truncated or removed."""
    began = time.monotonic()
    changed = await asyncio.to_thread(engine.files.changed)
    if began < engine.files_looked_at:  # a later check ended first
        return
    engine.files_looked_at = began
    if changed != engine.changed_file and changed is not None:
        fields = {"gallery": engine.bundle.name, "file": changed}
        logger.error("a file of the bundle was changed", extra={"fields": fields})
    engine.changed_file = changed


def require_whole(engine: SearchEngine) -> None:
    """Raise `NotReady` if a file of the engine's bundle was changed while it was served."""
    if engine.changed_file is not None:
        raise NotReady(
            f"{engine.changed_file} of the bundle of {engine.bundle.name!r} was changed while it "
            "was served. The operator must restore the bundle, or activate another bundle."
        )


def require_canaries(engines: Sequence[SearchEngine], period_s: float) -> None:
    """Raise `NotReady` if an engine has not answered a canary for three periods."""
    oldest = time.monotonic() - STALE_AFTER_PERIODS * period_s
    silent = [
        engine.bundle.name for engine in engines if not engine.running or engine.canary_at < oldest
    ]
    if silent:
        raise NotReady(
            f"No recent canary was answered by: {', '.join(silent)}. The encoder is being "
            "started again, or the service is overloaded; the log says which."
        )


async def send_canary(engine: SearchEngine, period_s: float) -> None:
    """Send a canary. After a failure, the time of the last answered canary stays unchanged."""
    with suppress(TimeoutError, VouchError):
        async with asyncio.timeout(STALE_AFTER_PERIODS * period_s):
            await engine.canary()
