"""The queues of images for encoders; bundles with the same encoder share encoder and queue.

Encoders are compared by the digest of their file, so one process can serve a thousand galleries
with the same encoder.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self
from weakref import WeakValueDictionary

from model_store.bundles.manifest import describe_shared
from model_store.encoder.contract import TEXT_ENCODER_FILE, Encoder, ForwardingEncoder
from model_store.encoder.text import OnnxTextEncoder, open_text_encoder
from model_store.machine import PROVIDERS, ProviderChoice, usable_processors
from service.observability.logs import BatchRecord
from service.scheduling import FairShare
from service.settings import Settings

from .batching import Batches, MicroBatcher, largest_useful_batch, useful_turn

FindFile = Callable[[], Path]
OpenFound = Callable[[FindFile, ProviderChoice, int], Encoder]
"""A function that opens an encoder. At each restart of the encoder, the `FindFile` is called again,
because the file may have moved."""

_Key = tuple[str, ProviderChoice, int]


class SharedEncoder(ForwardingEncoder):
    """A handle of a shared encoder: an `Encoder` for one bundle."""

    def __init__(self, real: Encoder, let_go: Callable[[], None]) -> None:
        super().__init__(real)
        self._let_go = let_go
        self._closing = threading.Lock()

    def close(self) -> None:
        """Release the handle; the last release closes the encoder."""
        if self._closing.acquire(blocking=False):  # only the first call
            self._let_go()


@dataclass(eq=False, slots=True)
class _Held:
    """An encoder, and the copies of its file; each bundle that uses the encoder has one copy."""

    files: list[Path] = field(default_factory=list)
    opening: threading.Lock = field(default_factory=threading.Lock)
    encoder: Encoder | None = None

    def file(self) -> Path:
        """Return the first copy of the encoder's file that still exists."""
        return next((file for file in self.files if file.exists()), self.files[0])


class SharedEncoders:
    """Opens each encoder once. Threads can share it.

    Parameters
    ----------
    open_encoder : function that opens a new encoder.
    """

    def __init__(self, open_encoder: OpenFound) -> None:
        self._open_encoder = open_encoder
        self._held: dict[_Key, _Held] = {}
        self._lock = threading.Lock()
        self._texts: WeakValueDictionary[tuple[str, int], OnnxTextEncoder] = WeakValueDictionary()

    def open(
        self, path: Path, provider: ProviderChoice = "auto", threads: int = 0
    ) -> SharedEncoder:
        """Return a handle of the encoder at ``path``.

        Raises
        ------
        EncoderError : see `OnnxEncoder`.
        """
        key = str(describe_shared(path)["sha256"]), provider, threads
        with self._lock:
            held = self._held.setdefault(key, _Held())
            held.files.append(path)
        let_go = partial(self._let_go, key, held, path)
        try:
            with held.opening:
                if held.encoder is None:
                    held.encoder = self._open_encoder(held.file, provider, threads)
            return SharedEncoder(held.encoder, let_go)
        except BaseException:
            let_go()
            raise

    def open_text(self, directory: Path, threads: int = 0) -> OnnxTextEncoder | None:
        """Return the text encoder in a directory; None if the directory has no text encoder."""
        if not (directory / TEXT_ENCODER_FILE).exists():
            return None
        key = str(describe_shared(directory / TEXT_ENCODER_FILE)["sha256"]), threads
        with self._lock:
            found = self._texts.get(key)
            if found is None:
                found = open_text_encoder(directory, threads)
                if found is not None:
                    self._texts[key] = found
            return found

    def _let_go(self, key: _Key, held: _Held, path: Path) -> None:
        with self._lock:
            held.files.remove(path)
            last = not held.files
            if last:
                del self._held[key]
        if last and held.encoder is not None:
            held.encoder.close()


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
