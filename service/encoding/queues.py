"""The queues of images for encoders; all galleries with the same encoder share one queue."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from model_store.encoder.contract import Encoder
from model_store.processors import PROVIDERS, usable_processors
from service.encoding.batching import Batches, MicroBatcher, largest_useful_batch, useful_turn
from service.encoding.shared import SharedEncoder
from service.fair_share import FairShare
from service.observability.records import BatchRecord
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of batches; see `service.settings.Settings`."""

    max_batch: int = 1
    max_pixels: int = 4_000_000
    padded: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits that the settings configure."""
        return cls(settings.max_batch, settings.max_batch_pixels, settings.pad_batches)


@dataclass(eq=False, slots=True)
class EncoderQueue:
    """The queue of one encoder, and its batch sizes."""

    batcher: MicroBatcher
    batches: Batches
    n_users: int = 0


class EncoderQueues:
    """The queues of all encoders; each is open while an engine uses it.

    Parameters
    ----------
    shares : schedulers of searches and decoders. On a single processor, the encoder waits until
        these schedulers are idle; see `MicroBatcher`.
    """

    def __init__(self, shares: Sequence[FairShare] = ()) -> None:
        self._shares = shares
        self._queues: dict[int, EncoderQueue] = {}
        self._opening = asyncio.Lock()

    @property
    def is_idle(self) -> bool:
        """True if no encoder has work."""
        return all(queue.batcher.is_idle for queue in self._queues.values())

    async def enter(
        self,
        encoder: Encoder,
        limits: BatchLimits,
        observe: Callable[[BatchRecord], None],
    ) -> EncoderQueue:
        """Return the queue of ``encoder``; the batch size of a new encoder is measured first.

        Parameters
        ----------
        observe : callback for each batch of a new queue.

        Raises
        ------
        EncoderError : the encoder does not answer.
        """
        real = _real(encoder)
        async with self._opening:
            queue = self._queues.get(id(real))
            if queue is None:
                queue = self._queues[id(real)] = await _opened(real, limits, observe, self._shares)
        queue.n_users += 1
        return queue

    async def leave(self, encoder: Encoder) -> None:
        """Release the queue; the last release closes the queue, and waiting requests fail."""
        key = id(_real(encoder))
        queue = self._queues[key]
        queue.n_users -= 1
        if queue.n_users == 0:
            del self._queues[key]
            await queue.batcher.close()


def _real(encoder: Encoder) -> Encoder:
    return encoder.real if isinstance(encoder, SharedEncoder) else encoder


async def _opened(
    encoder: Encoder,
    limits: BatchLimits,
    observe: Callable[[BatchRecord], None],
    shares: Sequence[FairShare],
) -> EncoderQueue:
    """Return the queue of an encoder."""
    batches = await asyncio.to_thread(measured, _real(encoder), limits)
    batcher = MicroBatcher(
        encoder,
        batches.size,
        turn=batches.turn,
        padded=limits.padded,
        shares=shares if batches.alone else (),
        observe=observe,
    )
    return EncoderQueue(batcher, batches)


def measured(encoder: Encoder, limits: BatchLimits) -> Batches:
    """Measure the best batch size, and the best number of batches in a turn."""
    fitting = max(1, limits.max_pixels // math.prod(encoder.metadata.input.shape[:2]))
    size, turn = min(limits.max_batch, fitting), 1
    n_processors = 0
    if encoder.provider == PROVIDERS["cpu"]:
        n_processors = usable_processors()
    if n_processors > 1 and not limits.padded:
        turn = useful_turn(encoder, 1, fitting, n_processors)
    if turn > 1:
        size = 1
    elif size > 1 and not limits.padded:
        size = largest_useful_batch(encoder, size)
    if n_processors == 1:
        turn = useful_turn(encoder, size, fitting // size, 1)
    return Batches(size, turn, alone=n_processors == 1)
