"""Spoilt copies of images: out of focus, full of noise, lying on their side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from index_builder.datasets.images import LabelledImages, Pixels, changed

BLUR = 1 / 14
"""Radius, in sides of the image: edges survive, texture does not."""

NOISE = 60
"""Standard deviation, of 255 grey levels."""


def corrupted(images: LabelledImages, seed: int) -> LabelledImages:
    """The same images, spoilt: each in one of three ways, in turn."""

    def change(pixels: Pixels, position: int) -> Pixels:
        if position % 3 == 0:
            return blurred(pixels)
        if position % 3 == 1:
            return noisy(pixels, np.random.default_rng([seed, position]))
        return np.ascontiguousarray(np.rot90(pixels))

    return changed(images, f"corrupted {seed}", change)


def blurred(pixels: Pixels) -> Pixels:
    """Out of focus."""
    radius = BLUR * max(pixels.shape)
    return np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(radius)))


def noisy(pixels: Pixels, generator: np.random.Generator) -> Pixels:
    """With Gaussian noise in every channel."""
    noise: NDArray[np.float64] = generator.normal(0, NOISE, pixels.shape)
    return np.clip(pixels + noise, 0, 255).round().astype(np.uint8)
