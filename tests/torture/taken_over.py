"""A decoder that was taken over, and what it tries to get at."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from model_store.errors import CorruptImage
from model_store.images import Preprocessing
from service.decoding.decoder import DecoderPool
from service.decoding.sandbox import SandboxMode
from tests.support.planted_decoder import PLANTED
from tests.torture.outcome import Outcome, Place

PREPROCESSING = Preprocessing(8, 8)


@contextmanager
def out_of_reach(folder: Path, bundle: Path) -> Iterator[dict[str, Any]]:
    """What a decoder should not get at."""
    keys = folder / "keys.json"
    keys.write_text("secret", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {
            "keys": str(keys),
            "gallery": str(next(bundle.rglob("*.sqlite*"))),
            "directory": str(folder),
            "port": server.getsockname()[1],
            "pid": os.getpid(),
        }


async def tried(target: dict[str, Any], mode: SandboxMode) -> dict[str, Any]:
    """What a decoder could do that had been taken over, where `planted` is in place."""
    async with DecoderPool(1, sandbox=mode) as pool:
        try:
            await pool.decode(PLANTED + json.dumps(target).encode(), PREPROCESSING)
        except CorruptImage as said:
            found: dict[str, Any] = json.loads(str(said))
            return found
    raise AssertionError("the planted decoder decoded what it should have been taken over by")


@contextmanager
def planted() -> Iterator[None]:
    """Have every decoder that is started be one that a file takes over."""
    secret = {"VOUCH_REDIS_URL": "redis://:password@redis"}
    place = "service.decoding.decoder.WORKER"
    with mock.patch(place, "tests.support.planted_decoder"), mock.patch.dict(os.environ, secret):
        yield


def attack(place: Place, seconds: float, seed: int) -> Outcome:
    """Have decoders taken over, one after the other, each confined by the kernel."""
    outcome, until = Outcome(), time.monotonic() + seconds
    with planted(), out_of_reach(place.folder, place.bundle) as target:
        while not outcome.n or time.monotonic() < until:
            found = asyncio.run(tried(target, "required"))
            outcome.n += len(found["outcomes"])
            done = [name for name, came in found["outcomes"].items() if came == "done"]
            outcome.violations += [f"a decoder got at {name}" for name in done + found["secrets"]]
    return outcome
