"""Encoders of several bundles: each runs once, for as long as somebody has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from model_store.encoder.contract import Encoder
from model_store.errors import EncoderError
from model_store.machine import ProviderChoice
from service.encoding.queues import BatchLimits, EncoderQueues, SharedEncoders
from tests.laws.encoder_laws import EncoderLaws
from tests.support.fakes import FakeEncoder

pytestmark = pytest.mark.anyio


class Started(FakeEncoder):
    """One that knows where its file is, and whether it was closed."""

    def __init__(self, find: Callable[[], Path]) -> None:
        super().__init__()
        self.find = find
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three files, of which the first two hold the same."""
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx", "c.onnx")]
    for path, content in zip(paths, (b"same", b"same", b"other"), strict=True):
        path.write_bytes(content)
    return paths


@pytest.fixture
def started() -> list[Started]:
    return []


@pytest.fixture
def encoders(started: list[Started]) -> SharedEncoders:
    def start(find: Callable[[], Path], _: ProviderChoice, __: int) -> Encoder:
        started.append(Started(find))
        return started[-1]

    return SharedEncoders(start)


class TestThePart(EncoderLaws):
    @pytest.fixture
    def encoder(self, encoders: SharedEncoders, files: list[Path]) -> Encoder:
        return encoders.open(files[0])


def test_files_that_hold_the_same_have_one_encoder(
    encoders: SharedEncoders, files: list[Path], started: list[Started]
) -> None:
    first, second, other = (encoders.open(file) for file in files)
    assert len(started) == 2
    assert first.real is second.real is not other.real
    encoders.open(files[0], "cpu", 3)
    assert len(started) == 3
    first.close()
    first.close()  # again: it is of no one else
    assert started[0].closed == 0
    second.close()
    assert started[0].closed == 1
    encoders.open(files[1])
    assert len(started) == 4


def test_many_who_ask_at_once_get_one(
    encoders: SharedEncoders, files: list[Path], started: list[Started]
) -> None:
    with ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(lambda _: encoders.open(files[0]), range(32)))
    assert len(started) == 1
    for part in parts:
        part.close()
    assert started[0].closed == 1


def test_it_starts_again_from_a_file_that_is_still_there(
    encoders: SharedEncoders, files: list[Path], started: list[Started]
) -> None:
    first, _ = encoders.open(files[0]), encoders.open(files[1])
    assert started[0].find() == files[0]
    files[0].unlink()  # its gallery was dropped
    assert started[0].find() == files[1]
    first.close()
    assert started[0].find() == files[1]


def test_one_that_does_not_start_is_nobodys(files: list[Path]) -> None:
    attempts: list[Path] = []

    def refusing(find: Callable[[], Path], _: ProviderChoice, __: int) -> Encoder:
        attempts.append(find())
        raise EncoderError("It does not start.")

    encoders = SharedEncoders(refusing)
    for _ in range(2):
        with pytest.raises(EncoderError):
            encoders.open(files[0])
    assert len(attempts) == 2


async def test_engines_of_one_encoder_have_one_queue(
    encoders: SharedEncoders, files: list[Path]
) -> None:
    queues, limits = EncoderQueues(), BatchLimits()
    parts = [encoders.open(file) for file in files]
    first, second, other = await asyncio.gather(
        *(queues.enter(part, limits, lambda _: None) for part in parts)
    )
    assert first is second is not other
    await queues.leave(parts[0])
    image = np.zeros((5, 5, 3), dtype=np.uint8)
    assert len(await second.batcher.encode(image)) == 1  # the other's queue goes on
    for part in parts[1:]:
        await queues.leave(part)
    assert await queues.enter(parts[0], limits, lambda _: None) is not first
    await queues.leave(parts[0])
