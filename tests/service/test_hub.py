"""One encoder for several processes: lines to it, and what ends with whom."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings
from model_store.errors import EncoderContractError, EncoderError, EncoderStopped, EncodingFailed
from model_store.processors import ProviderChoice
from service.encoding.batch_size import Batches
from service.encoding.hub import EncoderHub
from service.encoding.hub_encoder import HubEncoder
from service.encoding.queues import BatchLimits, EncoderQueues
from tests.laws.encoder_laws import EncoderLaws, images_for
from tests.support.fakes import FakeEncoder
from tests.support.waiting import TIMEOUT_S

LIMITS = BatchLimits(max_batch=1)


class Started(FakeEncoder):
    """One that knows where its file is, and does what it is told to."""

    def __init__(self, find: Callable[[], Path]) -> None:
        super().__init__()
        self.find = find
        self.closed = threading.Event()
        self.halted = threading.Event()
        self.halted.set()
        self.error: Exception | None = None

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        assert self.halted.wait(TIMEOUT_S)
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().encode(images, at_once)

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def started() -> list[Started]:
    return []


@pytest.fixture
def hub(started: list[Started]) -> EncoderHub:
    def start(find: Callable[[], Path], _: ProviderChoice, __: int) -> Started:
        if find().name == "refused.onnx":
            raise EncoderContractError("refused.onnx is none")
        started.append(Started(find))
        return started[-1]

    return EncoderHub(start, LIMITS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "encoder.onnx"
    path.write_bytes(b"encoder")
    return path


@pytest.fixture
def lines(hub: EncoderHub) -> Iterator[list[socket.socket]]:
    """The sockets of two processes."""
    with ExitStack() as stack:
        yield [stack.enter_context(hub.line()) for _ in range(2)]


class TestALine(EncoderLaws):
    @pytest.fixture
    def encoder(self, lines: list[socket.socket], file: Path) -> Iterator[HubEncoder]:
        with closing(HubEncoder(lines[0], lambda: file, "cpu", 1)) as opened:
            yield opened


def test_all_processes_have_one_encoder_until_the_last_lets_go(
    lines: list[socket.socket], file: Path, started: list[Started]
) -> None:
    one, other = (HubEncoder(line, lambda: file, "cpu", 1) for line in lines)
    assert len(started) == 1
    for name in ("fingerprint", "metadata", "provider", "placement", "dim", "n_features"):
        assert getattr(one, name) == getattr(other, name) == getattr(started[0], name)
    assert isinstance(one.batches, Batches)
    one.close()
    one.close()
    asked = images_for(other, 1, seed=0)
    wanted = started[0].encode(asked).mean.tobytes()
    assert other.encode(asked, 1).mean.tobytes() == wanted
    with pytest.raises(EncoderStopped, match="closed"):
        one.encode(asked)
    assert not started[0].closed.is_set()
    other.close()
    assert started[0].closed.wait(TIMEOUT_S)


def test_one_that_does_not_open_says_why(
    lines: list[socket.socket], tmp_path: Path, file: Path
) -> None:
    refused = tmp_path / "refused.onnx"
    refused.write_bytes(b"none")
    with pytest.raises(EncoderContractError, match="none"):
        HubEncoder(lines[0], lambda: refused, "cpu", 1)
    with pytest.raises(EncoderError):
        HubEncoder(lines[0], lambda: tmp_path / "missing.onnx", "cpu", 1)
    HubEncoder(lines[0], lambda: file, "cpu", 1).close()


def test_what_it_fails_over_is_said_to_who_sent_it(
    lines: list[socket.socket], file: Path, started: list[Started]
) -> None:
    with closing(HubEncoder(lines[0], lambda: file, "cpu", 1)) as encoder:
        asked = images_for(encoder, 1, seed=0)
        started[0].error = EncodingFailed("no picture")
        with pytest.raises(EncodingFailed, match="no picture"):
            encoder.encode(asked, 1)
        started[0].error = EncoderStopped("killed")
        with pytest.raises(EncoderStopped, match="killed"):
            encoder.encode(asked, 1)
        assert len(encoder.encode(asked, 1)) == 1
    assert len(started) == 1


def test_after_a_death_it_starts_again_from_a_file_that_is_still_there(
    lines: list[socket.socket], tmp_path: Path, started: list[Started]
) -> None:
    files = [tmp_path / name for name in ("a.onnx", "b.onnx")]
    for path in files:
        path.write_bytes(b"same")
    find = lambda: next(path for path in files if path.exists())  # noqa: E731
    with closing(HubEncoder(lines[0], find, "cpu", 1)) as encoder:
        files[0].unlink()  # such as a compaction removes
        asked = images_for(encoder, 1, seed=0)
        started[0].error = EncoderStopped("killed")
        with pytest.raises(EncoderStopped):
            encoder.encode(asked, 1)
        encoder.encode(asked, 1)
        assert started[0].find() == files[1]
        files[1].unlink()
        files[0].write_bytes(b"same")
    assert started[0].closed.wait(TIMEOUT_S)


def test_a_process_that_ends_leaves_the_others_what_they_have(
    lines: list[socket.socket], file: Path, started: list[Started]
) -> None:
    one, other = (HubEncoder(line, lambda: file, "cpu", 1) for line in lines)
    asked = images_for(one, 1, seed=0)
    started[0].halted.clear()
    with ThreadPoolExecutor(2) as threads:
        lost = threads.submit(one.encode, asked, 1)
        sleep(0.05)  # it is at work for it
        kept = threads.submit(other.encode, asked, 1)
        one.close()  # as its death would
        with pytest.raises(EncoderStopped):
            lost.result(TIMEOUT_S)
        lines[0].close()
        started[0].halted.set()
        assert len(kept.result(TIMEOUT_S)) == 1
    other.close()
    assert started[0].closed.wait(TIMEOUT_S)


@pytest.mark.anyio
async def test_a_queue_goes_by_what_the_hub_has_measured(
    lines: list[socket.socket], file: Path, started: list[Started]
) -> None:
    with closing(HubEncoder(lines[0], lambda: file, "cpu", 1)) as encoder:
        encoder.batches = Batches(3, 2)
        queues = EncoderQueues()
        queue = await queues.enter(encoder, BatchLimits(padded=True), lambda _: None)
        assert queue.batches == Batches(3, 2)
        answer = await queue.batcher.encode(images_for(encoder, 1, seed=0)[0])
        assert len(answer) == 1
        await queues.leave(encoder)
    assert len(started) == 1
