"""The engine of one machine: what is at work at once, and what is forgotten when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import cast

import numpy as np
import pytest

from index_builder.indexing.blocks import Block, PreparedBlock
from index_builder.indexing.engines import DecoderThreads, LocalEngine, Task
from index_builder.indexing.fetching import BLOCKS_AT_ONCE, Fetching
from model_store.encoder.contract import Embeddings
from model_store.errors import SourceUnavailable
from model_store.machine import PROVIDERS
from tests.support.fakes import FakeEncoder


def prepared(block: Block) -> PreparedBlock:
    images = np.zeros((1, 5, 5, 3), np.uint8)
    return PreparedBlock(block.number, block.ids, images, (None,), ("",), {}, (b"",))


class Decoded:
    """Has decoded every block already, but for one that takes longer."""

    def __init__(self, slow: int | None = None) -> None:
        self.slow, self.last, self.closed = slow, Future[PreparedBlock](), False

    def submit(self, block: Block) -> Future[PreparedBlock]:
        if block.number == self.slow:
            return self.last
        done: Future[PreparedBlock] = Future()
        done.set_result(prepared(block))
        return done

    def result(self, future: Future[PreparedBlock], block: Block) -> PreparedBlock:
        assert future.result().number == block.number
        return future.result()

    def close(self) -> None:
        self.closed = True


class Fetched:
    """Has fetched every block already, but for those from a number on, which cannot be had."""

    def __init__(self, lost_from: int = 40) -> None:
        self.lost_from, self.released_numbers, self.closed = lost_from, set[int](), False

    def submit(self, block: Block) -> Future[Block]:
        done: Future[Block] = Future()
        if block.number < self.lost_from:
            done.set_result(block)
        else:
            done.set_exception(SourceUnavailable("The bucket is gone."))
        return done

    def released(self, block: Block) -> None:
        self.released_numbers.add(block.number)

    def close(self) -> None:
        self.closed = True


def tasks(taken: list[int], n: int = 40) -> Iterator[Task]:
    for number in range(n):
        taken.append(number)
        yield Block(number, (f"image {number}",)), f"digest {number}"


def encoder_on(provider: str) -> FakeEncoder:
    encoder = FakeEncoder()
    encoder.provider = provider
    return encoder


@pytest.mark.parametrize(
    ("provider", "fetches", "n_at_work"),
    [
        (PROVIDERS["cpu"], False, 9),  # three batches at once, and two blocks for each
        (PROVIDERS["cpu"], True, 9 + BLOCKS_AT_ONCE),
        (PROVIDERS["cuda"], False, 7),  # a GPU takes one batch at a time
    ],
)
def test_no_more_blocks_are_held_than_are_at_work(
    provider: str, *, fetches: bool, n_at_work: int
) -> None:
    fetching = cast("Fetching", Fetched()) if fetches else None
    taken: list[int] = []
    with closing(LocalEngine(Decoded(), encoder_on(provider), 3, fetching=fetching)) as engine:
        shards = engine.shards(tasks(taken))
        first = next(shards)
        assert len(taken) == n_at_work
        numbers = {first.number, *(shard.number for shard in shards)}
    assert numbers == set(range(40))


def test_what_was_fetched_is_embedded_before_it_is_said_that_no_more_can_be_had() -> None:
    fetched, found = Fetched(lost_from=7), set[int]()
    engine = LocalEngine(Decoded(), FakeEncoder(), 1, fetching=cast("Fetching", fetched))
    with closing(engine):
        shards = engine.shards(tasks([]))
        found |= {next(shards).number for _ in range(7)}
        with pytest.raises(SourceUnavailable, match="The bucket is gone"):
            next(shards)
    assert found == fetched.released_numbers == set(range(7))
    assert fetched.closed


def test_what_is_decoded_waits_for_nothing_that_is_not() -> None:
    decoders = Decoded(slow=0)
    with closing(LocalEngine(decoders, FakeEncoder(), 1)) as engine:
        shards = engine.shards(tasks([], 2))
        ends = threading.Timer(10, decoders.last.set_exception, [TimeoutError()])
        ends.start()
        assert next(shards).number == 1
        ends.cancel()
        decoders.last.set_result(prepared(Block(0, ("image 0",))))
        assert [shard.number for shard in shards] == [0]
    assert decoders.closed


def test_batches_that_have_not_begun_are_forgotten_when_nobody_asks_any_more() -> None:
    """One was given, one is at work; a third waits for the thread that encodes."""
    encoder, begun = FakeEncoder(), list[int]()
    is_at_work, go_on = threading.Event(), threading.Event()

    def encode(block: PreparedBlock) -> Embeddings:
        begun.append(block.number)
        if len(begun) > 1:
            is_at_work.set()
            go_on.wait()
        return encoder.encode(np.zeros((1, 5, 5, 3), np.uint8))

    engine = LocalEngine(Decoded(), encoder_on(PROVIDERS["cuda"]), 1, encode)
    shards = engine.shards(tasks([]))
    next(shards)
    is_at_work.wait()
    threading.Timer(0.05, go_on.set).start()
    cast("Iterator[None]", shards).close()  # type: ignore[attr-defined]
    assert go_on.is_set()
    assert len(begun) == 2


def test_threads_that_decode_forget_what_has_not_begun() -> None:
    begun, is_at_work, go_on = list[int](), threading.Event(), threading.Event()

    def prepare(block: Block) -> PreparedBlock:
        begun.append(block.number)
        is_at_work.set()
        go_on.wait()
        return prepared(block)

    decoders = DecoderThreads(prepare, 1)
    first, second = (decoders.submit(Block(number, ("a",))) for number in range(2))
    is_at_work.wait()
    threading.Timer(0.05, go_on.set).start()
    decoders.close()
    assert begun == [0]
    assert first.result().number == 0
    assert second.cancelled()
