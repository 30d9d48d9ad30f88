"""Encodes concurrent queries in batches; a failed image affects only its own query.

A turn is a group of batches that the encoder computes in one call, before it returns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field

import numpy as np

from model_store.encoder.contract import Embeddings, Encoder, Inputs
from model_store.errors import EncoderStopped
from service.observability.logs import BatchRecord
from service.scheduling import FairShare

GAIN = 1.1
"""Minimum gain in speed. A larger batch size is used only if it multiplies the number of images per
second by at least this factor. The same applies to batches that run in parallel."""

BATCHES_IN_A_TURN = 16
"""Maximum number of batches in a turn, on a single processor; see `Batches.alone`."""

BATCHES_OF_A_PROCESSOR = 4
"""Maximum number of batches in a turn for each processor, if there are several processors. In a
longer turn, processors are idle for a smaller share of the time, but images wait longer for the
last batch."""

TURN_S = 0.25
"""Maximum duration of a turn in seconds. All images of a turn wait for the slowest batch, and a
running batch cannot be cancelled."""

_REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class Batches:
    """The batch size, and the number of batches in a turn, with which an encoder is fastest.

    Attributes
    ----------
    size : measured maximum batch size.
    turn : maximum number of batches in a turn.
    alone : whether a turn should begin only when no other work runs. This is true on a single
        processor, because each switch between encoding and other work empties the processor's
        caches.
    """

    size: int
    turn: int
    alone: bool = False


def largest_useful_batch(encoder: Encoder, limit: int) -> int:
    """Measure the best batch size, at most ``limit``.

    A batch has several images only if that is faster *and* each embedding has the same bits as in a
    batch of one image. Otherwise an answer would depend on concurrent requests and on the replica.
    """
    images = _noise(encoder, limit)
    alone = Embeddings.concatenate([encoder.encode(images[i : i + 1]) for i in range(limit)])
    best, best_rate = 1, _images_per_second(encoder, images[:1])
    while 2 * best <= limit and _bit_equal(encoder, images, alone, range(best + 1, 2 * best + 1)):
        rate = _images_per_second(encoder, images[: 2 * best])
        if rate < GAIN * best_rate:
            break
        best, best_rate = 2 * best, rate
    return best


def useful_turn(encoder: Encoder, size: int, limit: int, n_processors: int) -> int:
    """Measure how many batches of ``size`` images a turn should have; return at most ``limit``.

    If there are several processors, the batches of a turn run in parallel. In this case, the result
    is 1 if parallel batches are not faster than single batches, or give embeddings with other bits.
    """
    n = min(n_processors, limit)
    images = _noise(encoder, n * size)
    rate = _images_per_second(encoder, images[:size])
    if n_processors > 1:
        alone = [encoder.encode(images[i : i + size]) for i in range(0, n * size, size)]
        together = encoder.encode(images, size)
        if not _same(together, Embeddings.concatenate(alone)):
            return 1
        one, rate = rate, _images_per_second(encoder, images, size)
        if rate < GAIN * one:
            return 1
    most = BATCHES_IN_A_TURN if n_processors == 1 else BATCHES_OF_A_PROCESSOR * n_processors
    return max(1, int(min(most, limit, TURN_S * rate / size)))


def blank_images(encoder: Encoder, n: int) -> Inputs:
    """Return ``n`` black images at the encoder's input size."""
    expected = encoder.metadata.input
    return np.zeros((n, *expected.shape), dtype=expected.dtype)


def _noise(encoder: Encoder, n: int) -> Inputs:
    """Return ``n`` images of random pixels, whose embeddings show differences in rounding."""
    expected = encoder.metadata.input
    images = np.random.default_rng(0).integers(0, 256, (n, *expected.shape), dtype=np.uint8)
    return images.astype(expected.dtype)


def _images_per_second(encoder: Encoder, images: Inputs, at_once: int | None = None) -> float:
    """Return the highest of several measured speeds, because other work only reduces a speed."""
    fastest = np.inf
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        encoder.encode(images, at_once)
        fastest = min(fastest, time.perf_counter() - started)
    return float(len(images) / fastest)


def _bit_equal(encoder: Encoder, images: Inputs, alone: Embeddings, sizes: range) -> bool:
    return all(_same(encoder.encode(images[:size]), alone.at(slice(size))) for size in sizes)


def _same(one: Embeddings, other: Embeddings) -> bool:
    names = ("mean", "variance", "features")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


logger = logging.getLogger(__name__)

_ENDS = "The service ends. Send the image again."

_LOOP_TURNS = 10
"""Number of iterations of the event loop between two calls of the encoder. In these iterations, the
service answers the queries that were just encoded. It also reads and decodes new requests."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


@dataclass(eq=False, slots=True)
class _Waiting:
    """An image in the queue, and the future of its embedding.

    Attributes
    ----------
    alone : whether the image is encoded in a batch of one. If the encoder stops during a batch,
        each image of this batch is encoded alone, to find the cause.
    """

    image: Inputs
    answer: asyncio.Future[Embeddings]
    since: float = field(default_factory=time.perf_counter)
    alone: bool = False


class MicroBatcher:
    """Encodes the waiting images when the encoder is idle, in batches of at most ``size``.

    No request waits for a batch to fill. Images of cancelled calls are not encoded. If the encoder
    fails, the batch is split into halves until the image that causes the failure is alone. If the
    encoder *stops*, no image is encoded until the encoder has encoded a canary. Then each image of
    the batch is encoded alone. If the encoder stops again, that image gets an error.

    Parameters
    ----------
    size : maximum number of images in a batch; see `largest_useful_batch`.
    turn : maximum number of batches in one call of the encoder; see `useful_turn`.
    padded : fill every batch up to ``size``, so that an embedding does not depend on the number of
        images. GPUs need this, because their arithmetic depends on the batch size.
    shares : schedulers of other work. A turn waits until these schedulers are idle, but no longer
        than the previous turn took, and at most `TURN_S`; see `Batches.alone`.
    observe : function that is called after each batch, with a record of the batch.
    """

    def __init__(
        self,
        encoder: Encoder,
        size: int = 1,
        *,
        turn: int = 1,
        padded: bool = False,
        shares: Sequence[FairShare] = (),
        observe: Callable[[BatchRecord], None] = lambda _: None,
    ) -> None:
        self._encoder = encoder
        self._size = size
        self._turn = turn
        self._padded = padded
        self._shares = shares
        self._observe = observe
        self._queue: deque[_Waiting] = deque()
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")
        # A separate context: a batch has images of several requests, and must not run in the
        # context of the request that activated the bundle.
        self._runs = asyncio.create_task(self._run(), context=Context())
        self._closed = False
        self.running = True

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        return len(self._queue)

    @property
    def is_idle(self) -> bool:
        """True if no image waits and no image is being encoded."""
        return not self._more.is_set()

    async def encode(self, image: Inputs) -> Embeddings:
        """Embed one image, (H, W, 3) at the encoder's input size; return one embedding.

        Raises
        ------
        EncoderStopped, EncodingFailed
        """
        if self._closed:
            raise EncoderStopped(_ENDS)
        one = _Waiting(image, asyncio.get_running_loop().create_future())
        self._queue.append(one)
        self._more.set()
        return await one.answer

    async def close(self) -> None:
        """Stop; waiting requests get an error."""
        self._closed = True
        self._runs.cancel()
        with suppress(asyncio.CancelledError):
            await self._runs
        _fail(self._queue, EncoderStopped(_ENDS))
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        took = 0.0
        while True:
            if self._shares:
                await self._wait_for_others(min(took, TURN_S))
            taken = self._next()
            if not taken:
                self._more.clear()
                await self._more.wait()
                continue
            began = time.perf_counter()
            try:
                back = await self._answer(taken)
            except asyncio.CancelledError:
                _fail(taken, EncoderStopped(_ENDS))
                raise
            took = time.perf_counter() - began
            stopped = back is not None
            for i in range(0, len(taken), self._size):
                size = min(self._size, len(taken) - i)
                last = i + size == len(taken)
                self._observe(BatchRecord(size, began - taken[i].since, stopped and last))
            if back is not None:
                self._queue.extendleft(reversed(back))
                await self._recover()

    async def _wait_for_others(self, patience_s: float) -> None:
        """Wait until searches and decoders are idle, at most ``patience_s`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                for _ in range(_LOOP_TURNS):
                    await asyncio.sleep(0)
                while not all(share.is_idle for share in self._shares):
                    for share in self._shares:
                        await share.idle()

    def _next(self) -> list[_Waiting]:
        """Take the images of the next batches from the queue, without cancelled images."""
        taken: list[_Waiting] = []
        while self._queue and len(taken) < self._turn * self._size:
            if self._queue[0].alone and taken:
                break
            one = self._queue.popleft()
            if one.answer.done():
                continue
            taken.append(one)
            if one.alone:
                break
        return taken

    async def _answer(self, taken: list[_Waiting]) -> list[_Waiting] | None:
        """Encode the images ``taken``; after a failure, encode each half separately.

        Returns
        -------
        If the encoder stopped, the images that must be encoded after its restart; otherwise None.
        """
        outcome = await self._compute([one.image for one in taken])
        if isinstance(outcome, Embeddings):
            for row, one in enumerate(taken):
                if not one.answer.done():
                    alone = outcome if len(taken) == 1 else outcome.at(slice(row, row + 1))
                    one.answer.set_result(alone)
            return None
        stopped = isinstance(outcome, EncoderStopped)
        if len(taken) == 1:
            _fail(taken, outcome)
            return [] if stopped else None
        if stopped:
            for one in taken:
                one.alone = True
            return taken
        middle = len(taken) // 2
        back = await self._answer(taken[:middle])
        return await self._answer(taken[middle:]) if back is None else back + taken[middle:]

    async def _compute(self, images: Sequence[Inputs]) -> Embeddings | Exception:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encoded, images)

    def _encoded(self, images: Sequence[Inputs]) -> Embeddings | Exception:
        try:
            stacked = np.stack(images)
            missing = -len(images) % self._size if self._padded else 0
            if missing:
                blank = np.zeros((missing, *stacked.shape[1:]), dtype=stacked.dtype)
                stacked = np.concatenate([stacked, blank])
            encoded = self._encoder.encode(stacked, self._size)
            return encoded.at(slice(len(images))) if missing else encoded
        except Exception as error:
            return error

    async def _recover(self) -> None:
        """Encode canaries until one succeeds."""
        self.running = False
        logger.error("encoder stopped")
        [canary] = blank_images(self._encoder, 1)
        pause = _FIRST_PAUSE_S
        while True:
            outcome = await self._compute([canary])
            if isinstance(outcome, Embeddings):
                self.running = True
                return
            logger.error("encoder does not start", exc_info=outcome)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def _fail(taken: Iterable[_Waiting], error: Exception) -> None:
    for one in taken:
        if not one.answer.done():
            one.answer.set_exception(error)
