"""The queues of images that wait for an encoder: one for each, whichever galleries it serves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from model_store.encoder.contract import Encoder
from model_store.processors import PROVIDERS, usable_processors
from service.encoding.batch_size import largest_useful_batch, useful_turn
from service.encoding.batching import MicroBatcher
from service.encoding.shared import SharedEncoder
from service.observability.records import BatchRecord


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits on what is encoded at once; see `service.settings.Settings`."""

    max_batch: int = 1
    max_pixels: int = 4_000_000
    padded: bool = False


@dataclass(eq=False, slots=True)
class EncoderQueue:
    """The queue of one encoder.

    Attributes
    ----------
    batch_size : images encoded at once at most, as measured.
    turn : see `MicroBatcher`.
    """

    batcher: MicroBatcher
    batch_size: int
    turn: int
    n_users: int = 0


class EncoderQueues:
    """The queue of each encoder, for as long as an engine uses it."""

    def __init__(self) -> None:
        self._queues: dict[int, EncoderQueue] = {}
        self._opening = asyncio.Lock()

    @property
    def is_idle(self) -> bool:
        """True while no encoder has anything to do."""
        return all(queue.batcher.is_idle for queue in self._queues.values())

    async def enter(
        self,
        encoder: Encoder,
        limits: BatchLimits,
        observe: Callable[[BatchRecord], None],
    ) -> EncoderQueue:
        """Return the queue of ``encoder``, which is measured if nobody has one yet.

        Parameters
        ----------
        observe : told of every batch, where the queue is a new one.

        Raises
        ------
        EncoderError : the encoder does not answer.
        """
        real = _real(encoder)
        async with self._opening:
            queue = self._queues.get(id(real))
            if queue is None:
                queue = self._queues[id(real)] = await _measured(real, limits, observe)
        queue.n_users += 1
        return queue

    async def leave(self, encoder: Encoder) -> None:
        """Give the queue back; the last one closes it, and what waits is told so."""
        key = id(_real(encoder))
        queue = self._queues[key]
        queue.n_users -= 1
        if queue.n_users == 0:
            del self._queues[key]
            await queue.batcher.close()


def _real(encoder: Encoder) -> Encoder:
    return encoder.real if isinstance(encoder, SharedEncoder) else encoder


async def _measured(
    encoder: Encoder, limits: BatchLimits, observe: Callable[[BatchRecord], None]
) -> EncoderQueue:
    """Measure how many images are worth encoding at once, and how many batches in a row."""
    fitting = limits.max_pixels // math.prod(encoder.metadata.input.shape[:2])
    size, turn = max(1, min(limits.max_batch, fitting)), 1
    n_processors = usable_processors() if encoder.provider == PROVIDERS["cpu"] else 0
    if n_processors > 1 and not limits.padded:
        turn = await asyncio.to_thread(useful_turn, encoder, 1, fitting, n_processors)
    if turn > 1:
        size = 1
    elif size > 1 and not limits.padded:
        size = await asyncio.to_thread(largest_useful_batch, encoder, size)
    if n_processors == 1:
        turn = await asyncio.to_thread(useful_turn, encoder, size, fitting // size, 1)
    batcher = MicroBatcher(encoder, size, turn=turn, padded=limits.padded, observe=observe)
    return EncoderQueue(batcher, size, turn)
