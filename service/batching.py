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
    padded : fill every batch up to ``size``, so that each image is computed in the same way however
        many come together; for encoders (GPUs) whose arithmetic depends on the size of the batch.
    observe : told of every batch.
    """

    def __init__(
        self,
        encoder: Encoder,
        size: int = 1,
        *,
        padded: bool = False,
        observe: Callable[[BatchRecord], None] = lambda _: None,
    ) -> None:
        self._encoder = encoder
        self._size = size
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
            batch = self._next()
            if not batch:
                self._more.clear()
                await self._more.wait()
                continue
            waited_s = time.perf_counter() - batch[0].since
            stopped = False
            try:
                await self._answer(batch)
            except EncoderStopped as error:
                self._fail(batch, error)
                stopped = True
            except asyncio.CancelledError:
                self._fail(batch, EncoderStopped("The service ends. Send the image again."))
                raise
            self._observe(BatchRecord(len(batch), waited_s, stopped))
            if stopped:
                await self._recover()

    def _next(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        while self._queue and len(batch) < self._size:
            one = self._queue.popleft()
            if not one.answer.done():
                batch.append(one)
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        """Encode ``batch``; where that fails, its halves."""
        try:
            embeddings = await self._compute(np.stack([one.image for one in batch]))
        except EncoderStopped:
            raise
        except Exception as error:
            if len(batch) == 1:
                self._fail(batch, error)
                return
            middle = len(batch) // 2
            await self._answer(batch[:middle])
            await self._answer(batch[middle:])
            return
        for row, one in enumerate(batch):
            if not one.answer.done():
                one.answer.set_result(embeddings[row : row + 1])

    async def _compute(self, images: NDArray[np.uint8]) -> Embeddings:
        n_images = len(images)
        if self._padded and n_images < self._size:
            blank = np.zeros((self._size - n_images, *images.shape[1:]), dtype=np.uint8)
            images = np.concatenate([images, blank])
        loop = asyncio.get_running_loop()
        embeddings = await loop.run_in_executor(self._thread, self._encoder.encode, images)
        return embeddings[:n_images]

    async def _recover(self) -> None:
        """Encode canaries until one is answered."""
        self.running = False
        logger.error("encoder stopped")
        preprocessing = self._encoder.metadata.preprocessing
        canary = np.zeros((1, preprocessing.height, preprocessing.width, 3), dtype=np.uint8)
        pause = _FIRST_PAUSE_S
        while True:
            try:
                await self._compute(canary)
            except Exception:
                logger.exception("encoder does not start")
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            else:
                self.running = True
                return

    @staticmethod
    def _fail(batch: list[_Waiting], error: Exception) -> None:
        for one in batch:
            if not one.answer.done():
                one.answer.set_exception(error)
