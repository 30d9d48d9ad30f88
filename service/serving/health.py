"""Canaries: whether an engine still answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from model_store.errors import VouchError
from service.serving.engine import SearchEngine

STALE_AFTER_PERIODS = 3
"""A canary may be late twice: a busy service is not a broken one."""


async def send_canary(engine: SearchEngine, patience_s: float) -> None:
    """Let the engine answer one; that it does not is seen by the age of the last."""
    with suppress(TimeoutError, VouchError):
        async with asyncio.timeout(patience_s):
            await engine.canary()
