"""Queries that come together are encoded together, and fail alone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from model_store.encoder import Embeddings, Encoder
from model_store.errors import EncoderStopped

logger = logging.getLogger(__name__)

GAIN = 1.1
"""Images a second, over those of smaller batches, that make a larger batch worth its waiting."""

BATCHES_IN_A_TURN = 4
"""Of an encoder that shares its only processor: each change between what encodes and what answers
empties the processor's caches, and the first image of a turn waits for three more."""

_REPETITIONS = 5
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


def largest_useful_batch(encoder: Encoder, limit: int) -> int:
    """Measure how many images are best encoded at once, ``limit`` at most.

    More than one only where that is faster *and* gives each image the very bits it is given alone:
    an answer must not depend on who else asks at the moment, nor on the replica that is asked.
    """
    preprocessing = encoder.metadata.preprocessing
    shape = (limit, preprocessing.height, preprocessing.width, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    alone = Embeddings.concatenate([encoder.encode(images[i : i + 1]) for i in range(limit)])
    best, best_rate = 1, _images_per_second(encoder, images[:1])
    while 2 * best <= limit and _bit_equal(encoder, images, alone, range(best + 1, 2 * best + 1)):
        rate = _images_per_second(encoder, images[: 2 * best])
        if rate < GAIN * best_rate:
            break
        best, best_rate = 2 * best, rate
    return best


def _images_per_second(encoder: Encoder, images: NDArray[np.uint8]) -> float:
    """The best of a few attempts: whatever disturbs a measurement makes it slower."""
    fastest = np.inf
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        encoder.encode(images)
        fastest = min(fastest, time.perf_counter() - started)
    return float(len(images) / fastest)


def _bit_equal(
    encoder: Encoder, images: NDArray[np.uint8], alone: Embeddings, sizes: range
) -> bool:
    for size in sizes:
        together = encoder.encode(images[:size])
        for name in ("mean", "variance", "features"):
            if not np.array_equal(getattr(together, name), getattr(alone, name)[:size]):
                return False
    return True


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """What one batch came to, for metrics.

    Attributes
    ----------
    size : images encoded together.
    waited_s : how long the first of them had waited.
    stopped : whether the encoder stopped over them.
    """

    size: int
    waited_s: float
    stopped: bool


@dataclass(eq=False, slots=True)
class _Waiting:
    """An image in the queue, and where its answer goes."""

    image: NDArray[np.uint8]
    answer: asyncio.Future[Embeddings]
    since: float = field(default_factory=time.perf_counter)


class MicroBatcher:
    """Encodes what waits as soon as the encoder is idle, up to ``size`` images at once.

    Nobody waits for a batch to fill. Whoever has gone away (a cancelled `encode`) is left out.
    A batch that fails is halved until the image that spoils it is alone; a batch over which the
    encoder *stops* fails whole, and what waits goes on once the encoder has answered a canary.

    Parameters
    ----------
    size : see `largest_useful_batch`; padding to it is up to ``padded``.
    turn : batches that are encoded, one after the other, before their answers are looked at.
    padded : fill every batch up to ``size``, so that each image is computed in the same way however
        many come together; for encoders (GPUs) whose arithmetic depends on the size of the batch.
    observe : told of every batch.
    """

    def __init__(
        self,
        encoder: Encoder,
        size: int = 1,
        *,
        turn: int = 1,
        padded: bool = False,
        observe: Callable[[BatchRecord], None] = lambda _: None,
    ) -> None:
        self._encoder = encoder
        self._size = size
        self._turn = turn
        self._padded = padded
        self._observe = observe
        self._queue: deque[_Waiting] = deque()
        self._more = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")
        # A context of its own: a batch belongs to none of the requests, nor to one that had the
        # bundle activated.
        self._runs = asyncio.create_task(self._run(), context=Context())
        self.running = True

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        return len(self._queue)

    async def encode(self, image: NDArray[np.uint8]) -> Embeddings:
        """Embed one image, (H, W, 3) at the encoder's input size; the embeddings are of it alone.

        Raises
        ------
        EncoderStopped, EncodingFailed
        """
        one = _Waiting(image, asyncio.get_running_loop().create_future())
        self._queue.append(one)
        self._more.set()
        return await one.answer

    async def close(self) -> None:
        """Stop; what still waits is told so."""
        self._runs.cancel()
        with suppress(asyncio.CancelledError):
            await self._runs
        self._fail(list(self._queue), EncoderStopped("The service ends. Send the image again."))
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        while True:
            batches = self._next()
            if not batches:
                self._more.clear()
                await self._more.wait()
                continue
            taken = time.perf_counter()
            try:
                stopped = await self._answer(batches)
            except asyncio.CancelledError:
                for batch in batches:
                    self._fail(batch, EncoderStopped("The service ends. Send the image again."))
                raise
            encoded = batches if stopped is None else batches[: stopped + 1]
            for place, batch in enumerate(encoded):
                waited_s = taken - batch[0].since
                self._observe(BatchRecord(len(batch), waited_s, place == stopped))
            if stopped is not None:
                await self._recover()

    def _next(self) -> list[list[_Waiting]]:
        """The batches of a turn."""
        found: list[_Waiting] = []
        while self._queue and len(found) < self._turn * self._size:
            one = self._queue.popleft()
            if not one.answer.done():
                found.append(one)
        return [found[i : i + self._size] for i in range(0, len(found), self._size)]

    async def _answer(self, batches: list[list[_Waiting]]) -> int | None:
        """Encode ``batches``; where one fails, its halves.

        Returns
        -------
        The place of the batch over which the encoder stopped; those after it wait again.
        """
        images = [np.stack([one.image for one in batch]) for batch in batches]
        outcomes = await self._compute(images)
        for place, (batch, outcome) in enumerate(zip(batches, outcomes, strict=False)):
            stopped = False
            if isinstance(outcome, Embeddings):
                for row, one in enumerate(batch):
                    if not one.answer.done():
                        one.answer.set_result(outcome[row : row + 1])
            elif isinstance(outcome, EncoderStopped):
                self._fail(batch, outcome)
                stopped = True
            elif len(batch) == 1:
                self._fail(batch, outcome)
            else:
                middle = len(batch) // 2
                stopped = await self._answer([batch[:middle], batch[middle:]]) is not None
            if stopped:
                rest = [one for after in batches[place + 1 :] for one in after]
                self._queue.extendleft(reversed(rest))
                return place
        return None

    async def _compute(self, batches: list[NDArray[np.uint8]]) -> list[Embeddings | Exception]:
        """Encode one batch after the other, until the encoder stops."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encoded, batches)

    def _encoded(self, batches: list[NDArray[np.uint8]]) -> list[Embeddings | Exception]:
        outcomes: list[Embeddings | Exception] = []
        for images in batches:
            try:
                outcomes.append(self._encoder.encode(self._padded_up(images))[: len(images)])
            except EncoderStopped as error:
                return [*outcomes, error]
            except Exception as error:
                outcomes.append(error)
        return outcomes

    def _padded_up(self, images: NDArray[np.uint8]) -> NDArray[np.uint8]:
        missing = self._size - len(images)
        if not self._padded or missing == 0:
            return images
        blank = np.zeros((missing, *images.shape[1:]), dtype=np.uint8)
        return np.concatenate([images, blank])

    async def _recover(self) -> None:
        """Encode canaries until one is answered."""
        self.running = False
        logger.error("encoder stopped")
        preprocessing = self._encoder.metadata.preprocessing
        canary = np.zeros((1, preprocessing.height, preprocessing.width, 3), dtype=np.uint8)
        pause = _FIRST_PAUSE_S
        while True:
            [outcome] = await self._compute([canary])
            if isinstance(outcome, Embeddings):
                self.running = True
                return
            logger.error("encoder does not start", exc_info=outcome)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    @staticmethod
    def _fail(batch: list[_Waiting], error: Exception) -> None:
        for one in batch:
            if not one.answer.done():
                one.answer.set_exception(error)
