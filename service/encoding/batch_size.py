"""Measure the batch size with which an encoder is fastest.

A turn is a group of batches that the encoder computes in one call, before it returns.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from model_store.encoder.contract import Embeddings, Encoder, Inputs

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
