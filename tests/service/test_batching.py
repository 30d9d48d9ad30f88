"""Micro-batches: who is encoded with whom, and who fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.testclient import TestClient

from model_store.encoder.contract import Embeddings
from model_store.errors import EncoderStopped
from service.encoding.batching import MicroBatcher, largest_useful_batch, useful_turn
from service.encoding.queues import BatchLimits, EncoderQueues, measured
from service.observability.logs import BatchRecord
from service.scheduling import FairShare
from tests.support.fakes import FakeEncoder
from tests.support.waiting import TIMEOUT_S, until

pytestmark = pytest.mark.anyio

SIDE = 5
POISON = 255


def image(value: int) -> NDArray[np.uint8]:
    return np.full((SIDE, SIDE, 3), value, dtype=np.uint8)


class Recording(FakeEncoder):
    """Notes each batch; can be held, and fails over a poisoned image.

    Parameters
    ----------
    failing : raises for a batch in which an image is `POISON` throughout.
    """

    def __init__(self, failing: Callable[[], Exception] | None = None) -> None:
        super().__init__(side=SIDE)
        self.batches: list[list[int]] = []
        self.entered = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._failing = failing

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        self.entered.set()
        assert self.may_go_on.wait(TIMEOUT_S)
        size = at_once or len(images)
        for i in range(0, len(images), size):
            self.batches.append([int(one[0, 0, 0]) for one in images[i : i + size]])
            if self._failing is not None and POISON in self.batches[-1]:
                raise self._failing()
        return super().encode(images)


async def in_one_batch(
    encoder: Recording, batcher: MicroBatcher, values: list[int]
) -> list[asyncio.Task[Embeddings]]:
    """Let images wait behind one that holds the encoder up, so that they come together."""
    return await behind_one(encoder, batcher, [image(value) for value in values])


async def behind_one(
    encoder: Recording, batcher: MicroBatcher, images: list[NDArray[np.uint8]]
) -> list[asyncio.Task[Embeddings]]:
    """The same of any images."""
    encoder.may_go_on.clear()
    first = asyncio.create_task(batcher.encode(image(0)))
    await until(encoder.entered.is_set)
    tasks = [asyncio.create_task(batcher.encode(one)) for one in images]
    await until(lambda: batcher.waiting == len(images))
    encoder.may_go_on.set()
    await first
    return tasks


async def test_a_lone_image_does_not_wait_for_others() -> None:
    batcher = MicroBatcher(Recording(), size=8)
    await asyncio.wait_for(batcher.encode(image(1)), TIMEOUT_S)
    await batcher.close()


async def test_what_has_waited_is_encoded_together_and_each_gets_its_own() -> None:
    encoder, seen = Recording(), list[BatchRecord]()
    batcher = MicroBatcher(encoder, size=4, observe=seen.append)
    tasks = await in_one_batch(encoder, batcher, [1, 2, 3, 4, 5, 6])
    answers = await asyncio.gather(*tasks)
    assert encoder.batches == [[0], [1, 2, 3, 4], [5, 6]]
    for value, answer in enumerate(answers, start=1):
        alone = FakeEncoder(side=SIDE).encode(image(value)[None])
        assert len(answer) == 1
        assert answer.mean.tobytes() == alone.mean.tobytes()
        assert answer.features.tobytes() == alone.features.tobytes()
    await until(lambda: len(seen) == 3)
    assert [record.size for record in seen] == [1, 4, 2]
    assert all(record.waited_s >= 0 and not record.stopped for record in seen)
    await batcher.close()


async def test_a_batch_has_waited_as_long_as_the_first_of_it() -> None:
    encoder, seen = Recording(), list[BatchRecord]()
    batcher = MicroBatcher(encoder, size=2, observe=seen.append)
    encoder.may_go_on.clear()
    alone = asyncio.create_task(batcher.encode(image(0)))
    await until(encoder.entered.is_set)
    first = asyncio.create_task(batcher.encode(image(1)))
    await asyncio.sleep(0.2)
    second = asyncio.create_task(batcher.encode(image(2)))
    await until(lambda: batcher.waiting == 2)
    encoder.may_go_on.set()
    await asyncio.gather(alone, first, second)
    await until(lambda: len(seen) == 2)
    assert seen[1].size == 2
    assert seen[1].waited_s > 0.15
    await batcher.close()


async def test_a_poisoned_image_fails_alone() -> None:
    encoder = Recording(lambda: ValueError("not that one"))
    batcher = MicroBatcher(encoder, size=8)
    tasks = await in_one_batch(encoder, batcher, [1, 2, POISON, 4, 5])
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(answer, Embeddings) for answer in answers] == [True, True, False, True, True]
    assert str(answers[2]) == "not that one"
    await batcher.encode(image(6))
    await batcher.close()


async def test_who_has_gone_is_not_encoded() -> None:
    encoder = Recording()
    batcher = MicroBatcher(encoder, size=1)
    encoder.may_go_on.clear()
    first = asyncio.create_task(batcher.encode(image(0)))
    gone, stays = (asyncio.create_task(batcher.encode(image(value))) for value in (1, 2))
    await asyncio.sleep(0.05)
    gone.cancel()
    encoder.may_go_on.set()
    await asyncio.gather(first, stays)
    assert encoder.batches == [[0], [2]]
    await batcher.close()


async def test_a_stop_fails_the_image_it_was_over_and_what_waits_goes_on_after_canaries() -> None:
    encoder = Recording(lambda: EncoderStopped("gone"))
    batcher = MicroBatcher(encoder, size=2)
    tasks = await in_one_batch(encoder, batcher, [1, POISON, 3, 4])
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(answer, EncoderStopped) for answer in answers] == [False, True, False, False]
    assert encoder.batches == [[0], [1, POISON], [0], [1], [POISON], [0], [3, 4]]
    assert batcher.running
    await batcher.close()


async def test_who_has_gone_when_the_encoder_is_back_is_not_encoded_alone() -> None:
    def held_up() -> Exception:
        encoder.may_go_on.clear()
        return EncoderStopped("gone")

    encoder = Recording(held_up)
    batcher = MicroBatcher(encoder, size=3)
    tasks = await in_one_batch(encoder, batcher, [1, POISON, 2])
    await until(lambda: not batcher.running)
    tasks[1].cancel()
    await asyncio.sleep(0)
    encoder.may_go_on.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Embeddings, asyncio.CancelledError, Embeddings]
    assert encoder.batches == [[0], [1, POISON, 2], [0], [1], [2]]
    await batcher.close()


async def test_it_is_not_running_until_a_canary_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.encoding.batching._FIRST_PAUSE_S", 0.01)
    encoder = Recording()
    down = True

    def encode(images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        if down:
            raise EncoderStopped("still down")
        return FakeEncoder(side=SIDE).encode(images)

    monkeypatch.setattr(encoder, "encode", encode)
    batcher = MicroBatcher(encoder, size=2)
    with pytest.raises(EncoderStopped):
        await batcher.encode(image(1))
    waits = asyncio.create_task(batcher.encode(image(2)))
    await asyncio.sleep(0.1)
    ran_meanwhile = batcher.running
    assert not waits.done()
    down = False
    await asyncio.wait_for(waits, TIMEOUT_S)
    assert (ran_meanwhile, batcher.running) == (False, True)
    await batcher.close()


async def test_the_batches_of_a_turn_are_encoded_one_by_one_and_each_gets_its_own() -> None:
    encoder = Recording()
    batcher = MicroBatcher(encoder, turn=3)
    tasks = await in_one_batch(encoder, batcher, [1, 2, 3, 4])
    answers = await asyncio.gather(*tasks)
    assert encoder.batches == [[0], [1], [2], [3], [4]]
    for value, answer in enumerate(answers, start=1):
        np.testing.assert_array_equal(answer.mean, encoder.encode(image(value)[None]).mean)
    await batcher.close()


async def test_a_poisoned_batch_of_a_turn_fails_alone() -> None:
    encoder = Recording(failing=lambda: ValueError("poison"))
    batcher = MicroBatcher(encoder, turn=3)
    tasks = await in_one_batch(encoder, batcher, [1, POISON, 2])
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, ValueError) for outcome in outcomes] == [False, True, False]
    await batcher.close()


async def test_a_stop_in_a_turn_fails_the_image_it_was_over() -> None:
    encoder = Recording(failing=lambda: EncoderStopped("it died"))
    records: list[BatchRecord] = []
    batcher = MicroBatcher(encoder, turn=3, observe=records.append)
    tasks = await in_one_batch(encoder, batcher, [1, POISON, 2])
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, EncoderStopped) for outcome in outcomes] == [False, True, False]
    assert encoder.batches == [[0], [1], [POISON], [0], [1], [POISON], [0], [2]]
    await until(lambda: len(records) == 7)
    assert [record.stopped for record in records].count(True) == 2, "stops are counted once each"
    await batcher.close()


async def test_after_a_failure_and_a_stop_those_who_came_first_are_encoded_first() -> None:
    ends: list[Exception] = [ValueError("too much at once"), EncoderStopped("gone")]
    encoder = Recording(lambda: ends.pop(0) if ends else EncoderStopped("gone"))
    batcher = MicroBatcher(encoder, size=4)
    tasks = await in_one_batch(encoder, batcher, [1, POISON, 3, 4])
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, EncoderStopped) for outcome in outcomes] == [
        False,
        True,
        False,
        False,
    ]
    assert encoder.batches == [[0], [1, POISON, 3, 4], [1, POISON], [0], [1], [POISON], [0], [3, 4]]
    await batcher.close()


async def test_images_that_cannot_be_put_together_are_encoded_one_by_one() -> None:
    encoder = Recording()
    batcher = MicroBatcher(encoder, size=4)
    other = np.full((SIDE * SIDE, 1, 3), 1, dtype=np.uint8)  # as many pixels
    tasks = await behind_one(encoder, batcher, [other, image(2)])
    await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT_S)
    assert encoder.batches == [[0], [1], [2]]
    await batcher.close()


async def test_padded_batches_have_one_size_and_give_back_what_was_asked() -> None:
    encoder = Recording()
    batcher = MicroBatcher(encoder, size=4, padded=True)
    answer = await batcher.encode(image(7))
    assert encoder.batches == [[7, 0, 0, 0]]
    assert len(answer) == 1
    await batcher.close()


async def test_each_batch_of_a_turn_is_padded() -> None:
    encoder = Recording()
    batcher = MicroBatcher(encoder, size=2, turn=2, padded=True)
    answers = await asyncio.gather(*await in_one_batch(encoder, batcher, [1, 2, 3]))
    assert encoder.batches == [[0, 0], [1, 2], [3, 0]]
    assert [len(answer) for answer in answers] == [1, 1, 1]
    await batcher.close()


async def test_closing_tells_whoever_waits() -> None:
    encoder = Recording()
    batcher = MicroBatcher(encoder, size=1)
    encoder.may_go_on.clear()
    tasks = [asyncio.create_task(batcher.encode(image(value))) for value in (1, 2)]
    await asyncio.sleep(0.05)
    closing = asyncio.create_task(batcher.close())
    await asyncio.sleep(0.05)
    encoder.may_go_on.set()
    await closing
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(answer, EncoderStopped)


class Clocked(FakeEncoder):
    """Takes as long as it says, on a clock of its own.

    Parameters
    ----------
    seconds : of a batch of so many images.
    """

    def __init__(self, seconds: Callable[[int], float]) -> None:
        super().__init__(side=SIDE)
        self.now = 0.0
        self._seconds = seconds

    def perf_counter(self) -> float:
        return self.now

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        self.now += self._seconds(len(images))
        return super().encode(images)


def useful(encoder: Clocked, limit: int, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("service.encoding.batching.time", encoder)
    return largest_useful_batch(encoder, limit)


@pytest.mark.parametrize(
    ("seconds", "limit", "wanted"),
    [(1e-4, 100, 16), (0.01, 100, 16), (0.03, 100, 8), (0.2, 100, 1), (3.0, 100, 1), (0.01, 3, 3)],
)
def test_a_turn_takes_a_quarter_of_a_second_at_most(
    seconds: float, limit: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Clocked(lambda _: seconds)
    monkeypatch.setattr("service.encoding.batching.time", encoder)
    assert useful_turn(encoder, 1, limit, 1) == wanted


class TestATurnOfSeveralProcessors:
    @pytest.mark.parametrize(
        ("share", "wanted"),
        [(1.0, 1), (0.95, 1), (0.5, 32), (0.3, 32)],  # gains less than a tenth; gains
    )
    def test_it_is_of_several_batches_where_they_go_side_by_side(
        self, share: float, wanted: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoder = Clocked(lambda n: 1e-4 * n * (share if n > 1 else 1))
        monkeypatch.setattr("service.encoding.batching.time", encoder)
        assert useful_turn(encoder, 1, 100, 8) == wanted

    def test_never_where_an_answer_would_depend_on_who_else_asks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Rounding(Clocked):
            def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
                found = super().encode(images)
                if at_once is not None:
                    found.variance[-1, 0] = np.nextafter(found.variance[-1, 0], np.float32(9))
                return found

        encoder = Rounding(lambda n: 1e-4 * n * (0.5 if n > 1 else 1))
        monkeypatch.setattr("service.encoding.batching.time", encoder)
        assert useful_turn(encoder, 1, 100, 8) == 1


class TestLargestUsefulBatch:
    @pytest.mark.parametrize(
        ("seconds", "wanted"),
        [
            (lambda n: 4e-3 * n, 1),
            (lambda n: 4e-3 * n + 0.2e-3, 1),  # gains less than a tenth
            (lambda n: 4e-3, 8),
            (lambda n: 4e-3 * max(n, 4), 4),  # no more to be had from four on
        ],
    )
    def test_it_grows_as_long_as_that_pays(
        self, seconds: Callable[[int], float], wanted: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert useful(Clocked(seconds), 8, monkeypatch) == wanted

    @pytest.mark.parametrize(("only_at", "wanted"), [(2, 1), (3, 2), (4, 2), (7, 4)])
    def test_never_where_an_answer_would_depend_on_the_batch(
        self, only_at: int, wanted: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Rounding(Clocked):
            def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
                found = super().encode(images)
                if len(images) == only_at:
                    found.features[0, 0] = np.nextafter(found.features[0, 0], np.float32(2))
                return found

        assert useful(Rounding(lambda n: 4e-3), 8, monkeypatch) == wanted


class TestTurnsWhileNothingElseIsComputed:
    """By the encoder's clock a turn has taken so long; others may hold the next one up as long."""

    @pytest.fixture
    def slow(self, monkeypatch: pytest.MonkeyPatch) -> Clocked:
        encoder = Clocked(lambda _: 1000)
        monkeypatch.setattr("service.encoding.batching.time", encoder)
        monkeypatch.setattr("service.encoding.batching.TURN_S", 1000)
        return encoder

    async def test_it_waits_until_others_have_ended(self, slow: Clocked) -> None:
        share = FairShare(2)
        batcher = MicroBatcher(slow, shares=[FairShare(1), share])
        await batcher.encode(image(1))
        who = await share.enter()
        second = asyncio.create_task(batcher.encode(image(2)))
        await asyncio.sleep(0.05)
        assert slow.now == 1000
        share.leave(who)
        await asyncio.wait_for(second, TIMEOUT_S)
        assert slow.now == 2000
        await batcher.close()

    async def test_who_has_been_answered_goes_before_the_next(self, slow: Clocked) -> None:
        share = FairShare(1)
        batcher = MicroBatcher(slow, shares=[share])
        searched_at = []

        async def search() -> None:
            await batcher.encode(image(1))
            who = await share.enter()
            await asyncio.sleep(0.05)
            searched_at.append(slow.now)
            share.leave(who)

        await asyncio.gather(*(search() for _ in range(3)))
        assert searched_at == [1000, 2000, 3000]
        await batcher.close()

    @pytest.mark.parametrize("seconds", [0.02, 1000])
    async def test_it_waits_no_longer_than_its_last_turn_took_nor_a_quarter_of_a_second(
        self, seconds: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoder, share = Clocked(lambda _: seconds), FairShare(1)
        monkeypatch.setattr("service.encoding.batching.time", encoder)
        batcher = MicroBatcher(encoder, shares=[share])
        await share.enter()
        for value in (1, 2, 3):
            await asyncio.wait_for(batcher.encode(image(value)), TIMEOUT_S)
        await batcher.close()


@pytest.mark.parametrize(
    ("provider", "n_processors", "alone"),
    [
        ("CPUExecutionProvider", 1, True),
        ("CPUExecutionProvider", 2, False),
        ("CUDAExecutionProvider", 1, False),
        ("CUDAExecutionProvider", 2, False),
    ],
)
def test_an_encoder_is_best_alone_on_an_only_processor(
    provider: str, n_processors: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = FakeEncoder(side=SIDE)
    encoder.provider = provider
    monkeypatch.setattr("service.encoding.queues.usable_processors", lambda: n_processors)
    assert measured(encoder, BatchLimits()).alone == alone


@pytest.mark.parametrize("n_processors", [1, 2])
def test_measured_of_images_larger_than_a_batch_is_one_image(
    n_processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.encoding.queues.usable_processors", lambda: n_processors)
    limits = BatchLimits(max_batch=8, max_pixels=SIDE * SIDE - 1)
    found = measured(FakeEncoder(side=SIDE), limits)
    assert (found.size, found.turn) == (1, 1)


@pytest.mark.parametrize(("decoders", "n_shares"), [(1, 2), (0, 1)])
def test_the_encoder_of_a_service_waits_for_decoders_and_threads(
    decoders: int,
    n_shares: int,
    start: Callable[..., TestClient],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited_for: list[FairShare] = []

    class Noted(EncoderQueues):
        def __init__(self, shares: Sequence[FairShare] = ()) -> None:
            waited_for.extend(shares)
            super().__init__(shares)

    monkeypatch.setattr("service.app.EncoderQueues", Noted)
    start(decoders=decoders)
    assert len(waited_for) == n_shares


async def test_who_comes_after_the_end_is_told_so() -> None:
    batcher = MicroBatcher(Recording(), size=2)
    await batcher.close()
    with pytest.raises(EncoderStopped, match="The service ends"):
        await asyncio.wait_for(batcher.encode(image(1)), TIMEOUT_S)
