"""Spoilt copies of images: out of focus, full of noise, lying on their side; and of vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from index_builder.datasets.images import LabelledImages, Pixels, changed

BLUR = 1 / 14
"""Radius, in sides of the image: edges survive, texture does not."""

NOISE = 60
"""Standard deviation, of 255 grey levels."""

NOISE_AT_ONCE = 2**18
"""Grey levels that noise is drawn for at a time: of a large image it takes a gigabyte at once, and
six times as long."""

EXCHANGED = (0.25, 0.5, 1.0)
"""Shares of a vector's numbers that others take the place of."""

N_OTHERS = 16
"""Vectors that the numbers of one come from."""


def corrupted(images: LabelledImages, seed: int) -> LabelledImages:
    """The same images, spoilt: each in one of three ways, in turn."""

    def change(pixels: Pixels, position: int) -> Pixels:
        if position % 3 == 0:
            return blurred(pixels)
        if position % 3 == 1:
            return noisy(pixels, np.random.default_rng([seed, position]))
        return np.ascontiguousarray(np.rot90(pixels))

    return changed(images, f"corrupted {seed}", change)


def corrupted_vectors(images: LabelledImages, seed: int) -> LabelledImages:
    """The same vectors, with numbers of others in them: a quarter, half, and all, in turn.

    Each number stays one that its place may have; how the numbers depend on each other is lost
    (after Breiman 2001, who tells a sample by it from a synthetic one).
    """

    def change(row: Pixels, position: int) -> Pixels:
        generator = np.random.default_rng([seed, position])
        others = [images.pixels(other) for other in generator.integers(len(images), size=N_OTHERS)]
        drawn = np.choose(generator.integers(N_OTHERS, size=row.shape), others)
        share = EXCHANGED[position % len(EXCHANGED)]
        return np.where(generator.random(row.shape) < share, drawn, row)

    return changed(images, f"corrupted vectors {seed}", change)


def blurred(pixels: Pixels) -> Pixels:
    """Out of focus."""
    radius = BLUR * max(pixels.shape)
    return np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(radius)))


def noisy(pixels: Pixels, generator: np.random.Generator) -> Pixels:
    """With Gaussian noise in every channel."""
    spoilt = np.empty_like(pixels)
    n_rows = max(1, NOISE_AT_ONCE // pixels[0].size)
    for start in range(0, len(pixels), n_rows):
        rows = slice(start, start + n_rows)
        noise: NDArray[np.float64] = generator.normal(0, NOISE, pixels[rows].shape)
        noise += pixels[rows]
        spoilt[rows] = np.clip(noise, 0, 255, out=noise).round(out=noise)
    return spoilt
