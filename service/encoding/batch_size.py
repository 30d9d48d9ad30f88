"""Measure which batch size an encoder gains from."""

from __future__ import annotations

import time

import numpy as np

from model_store.encoder.contract import Embeddings, Encoder, Inputs

GAIN = 1.1
"""Images a second, over those of smaller batches, that make a larger batch worth its waiting."""

BATCHES_IN_A_TURN = 16
"""At most, of an encoder that shares its only processor: each change between what encodes and what
answers empties the processor's caches."""

TURN_S = 0.25
"""Seconds that a turn may take at most: its first image waits for its last, and a batch that has
begun is not given up."""

_REPETITIONS = 5


def largest_useful_batch(encoder: Encoder, limit: int) -> int:
    """Measure how many images are best encoded at once, ``limit`` at most.

    More than one only where that is faster *and* gives each image the very bits it is given alone:
    an answer must not depend on who else asks at the moment, nor on the replica that is asked.
    """
    expected = encoder.metadata.input
    images = np.random.default_rng(0).integers(0, 256, (limit, *expected.shape), dtype=np.uint8)
    images = images.astype(expected.dtype)
    alone = Embeddings.concatenate([encoder.encode(images[i : i + 1]) for i in range(limit)])
    best, best_rate = 1, _images_per_second(encoder, images[:1])
    while 2 * best <= limit and _bit_equal(encoder, images, alone, range(best + 1, 2 * best + 1)):
        rate = _images_per_second(encoder, images[: 2 * best])
        if rate < GAIN * best_rate:
            break
        best, best_rate = 2 * best, rate
    return best


def useful_turn(encoder: Encoder, size: int, limit: int) -> int:
    """Measure how many batches of ``size`` an encoder is best given in a row, ``limit`` at most."""
    batches = TURN_S * _images_per_second(encoder, blank_images(encoder, size)) / size
    return max(1, int(min(BATCHES_IN_A_TURN, limit, batches)))


def blank_images(encoder: Encoder, n: int) -> Inputs:
    """``n`` images that show nothing, at the encoder's input size."""
    expected = encoder.metadata.input
    return np.zeros((n, *expected.shape), dtype=expected.dtype)


def _images_per_second(encoder: Encoder, images: Inputs) -> float:
    """The best of a few attempts: whatever disturbs a measurement makes it slower."""
    fastest = np.inf
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        encoder.encode(images)
        fastest = min(fastest, time.perf_counter() - started)
    return float(len(images) / fastest)


def _bit_equal(encoder: Encoder, images: Inputs, alone: Embeddings, sizes: range) -> bool:
    for size in sizes:
        together = encoder.encode(images[:size])
        for name in ("mean", "variance", "features"):
            if not np.array_equal(getattr(together, name), getattr(alone, name)[:size]):
                return False
    return True
