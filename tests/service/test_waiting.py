"""Waiting: for a Redis that hangs, and by whoever is refused for a passing reason."""

from __future__ import annotations

import asyncio
import time

import pytest

from model_store.errors import GallerySuperseded, StorageBusy
from service.http.problems import RETRY_AFTER_S, status_of
from service.redis_calls import RedisCalls


@pytest.mark.anyio
async def test_a_redis_that_hangs_is_not_waited_for() -> None:
    began = time.monotonic()
    calls = RedisCalls(0.05, "counting")
    assert await asyncio.wait_for(calls.ask(lambda: asyncio.sleep(60, "late")), 30) is None
    assert time.monotonic() - began < 20
    assert calls.failed_last


@pytest.mark.parametrize("error", [StorageBusy, GallerySuperseded])
def test_what_passes_by_itself_says_when(error: type[StorageBusy]) -> None:
    assert status_of(error) == 503
    assert 1 <= RETRY_AFTER_S[error] <= 5
