"""Measure which batch size an encoder gains from."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from model_store.encoder.contract import Embeddings, Encoder, Inputs

GAIN = 1.1
"""Minimum gain in images per second over a smaller batch, as a factor."""

BATCHES_IN_A_TURN = 16
"""Maximum batches in a turn of an encoder that shares its only processor; see `Batches.alone`."""

BATCHES_OF_A_PROCESSOR = 4
"""Maximum batches in a turn per processor, with several processors. The last batches of a turn
leave some of them idle, and the turn is answered after its last batch."""

TURN_S = 0.25
"""Maximum duration of a turn in seconds: its first image waits for its last, and a running batch is
never cancelled."""

_REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class Batches:
    """The best batches for an encoder.

    Attributes
    ----------
    size : measured maximum batch size.
    turn : see `MicroBatcher`.
    alone : whether a turn is best given while nothing else is computed: the encoder shares its only
        processor, and each change between what encodes and what answers empties its caches.
    """

    size: int
    turn: int
    alone: bool = False


def largest_useful_batch(encoder: Encoder, limit: int) -> int:
    """Measure the best batch size, at most ``limit``.

    A batch has several images only if it is faster *and* each image gets the same bits as alone.
    Otherwise an answer would depend on concurrent requests and on the replica.
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
    """Measure the best number of batches of ``size`` in a turn, at most ``limit``.

    With several processors the number exceeds 1 only if parallel batches are faster and each image
    gets the same bits as alone.
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
    """Return ``n`` random images; sums of very different numbers reveal differences in rounding."""
    expected = encoder.metadata.input
    images = np.random.default_rng(0).integers(0, 256, (n, *expected.shape), dtype=np.uint8)
    return images.astype(expected.dtype)


def _images_per_second(encoder: Encoder, images: Inputs, at_once: int | None = None) -> float:
    """Return the fastest of a few attempts, because disturbances only slow a measurement."""
    fastest = np.inf
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        encoder.encode(images, at_once)
        fastest = min(fastest, time.perf_counter() - started)
    return float(len(images) / fastest)


def _bit_equal(encoder: Encoder, images: Inputs, alone: Embeddings, sizes: range) -> bool:
    return all(_same(encoder.encode(images[:size]), alone[:size]) for size in sizes)


def _same(one: Embeddings, other: Embeddings) -> bool:
    names = ("mean", "variance", "features")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
