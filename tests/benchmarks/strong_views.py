"""Photographs of a scene taken again by somebody else, made up: how, calibration has never seen.

`index_builder.datasets.corruption` turns, crops, relights, blurs a little and compresses. None of
that is done here. A scene is seen from the side (perspective), in another white balance, with a
shadow across it, something in the way, the camera moving, few pixels and a noisy sensor.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from index_builder.datasets.images import LabelledImages, Pixels

TILT = 0.12
"""How far a corner moves inwards, at most, in sides of the image."""

CAST = (0.8, 1.2)
"""Factor on each channel: lamp light to open shade."""

SHADOW = (0.45, 0.9)
"""What is left of the light at the dark end."""

COVERED = (0.15, 0.3)
"""Sides of what is in the way, in sides of the image."""

MOTION = (3, 7)
"""Pixels of a smear, in an image of 224."""

SHRUNK = (0.35, 0.8)
"""Of each side, before it is enlarged again."""

NOISE = (3.0, 12.0)
"""Standard deviation, of 255 grey levels."""

Floats = NDArray[np.float64]


def strong_views(images: LabelledImages, seed: int) -> LabelledImages:
    """A strong view of each image, with its id and label."""

    def read(position: int, smallest_side: int | None) -> Pixels:
        pixels = images.pixels(position, smallest_side)
        return strong_view(pixels, np.random.default_rng([seed, 7, position]))

    return replace(images, read=read, rows=np.arange(len(images)), content=None)


def strong_view(pixels: Pixels, generator: np.random.Generator) -> Pixels:
    """Photograph it from the side, and with two of five further mishaps."""
    image = _tilted(Image.fromarray(pixels), generator)
    mishaps = (_in_other_light, _in_shadow, _covered, _moved, _shrunk)
    for place in sorted(generator.choice(len(mishaps), 2, replace=False).tolist()):
        image = mishaps[place](image, generator)
    noise = generator.normal(0, generator.uniform(*NOISE), (image.height, image.width, 3))
    return np.clip(np.asarray(image) + noise, 0, 255).round().astype(np.uint8)


def _tilted(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Seen from the side: a quadrilateral within the image becomes the image."""
    width, height = image.size
    moved = generator.uniform(0, TILT, (4, 2)) * [width, height]
    corners = np.array([[0, 0], [0, height], [width, height], [width, 0]], float)
    corners += moved * [[1, 1], [1, -1], [-1, -1], [-1, 1]]
    return image.transform(
        image.size,
        Image.Transform.PERSPECTIVE,
        _perspective(width, height, corners),
        Image.Resampling.BILINEAR,
    )


def _perspective(width: int, height: int, corners: Floats) -> list[float]:
    """Return Pillow's eight coefficients: from places in the new image to those in the old one."""
    rows, values = [], []
    for (x, y), (u, v) in zip(
        [(0, 0), (0, height), (width, height), (width, 0)], corners.tolist(), strict=True
    ):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved: list[float] = np.linalg.solve(np.array(rows, float), np.array(values)).tolist()
    return solved


def _in_other_light(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    return _of(np.asarray(image) * generator.uniform(*CAST, 3))


def _in_shadow(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Darker towards one edge."""
    ramp = np.linspace(1.0, generator.uniform(*SHADOW), image.width)
    if generator.random() < 0.5:
        ramp = ramp[::-1]
    return _of(np.asarray(image) * ramp[None, :, None])


def _covered(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Something of one colour in the way."""
    pixels = np.array(image)
    height, width = (
        max(1, round(side * generator.uniform(*COVERED))) for side in (image.height, image.width)
    )
    top = int(generator.integers(0, image.height - height + 1))
    left = int(generator.integers(0, image.width - width + 1))
    pixels[top : top + height, left : left + width] = generator.integers(0, 256, 3)
    return Image.fromarray(pixels)


def _moved(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Smeared to one side, as by a camera that moves."""
    pixels = np.asarray(image, dtype=float)
    length = max(2, round(int(generator.integers(*MOTION)) * image.width / 224))
    padded = np.pad(pixels, ((0, 0), (length, 0), (0, 0)), mode="edge")
    parts = [padded[:, shift : shift + image.width] for shift in range(length)]
    return _of(np.mean(parts, axis=0))


def _shrunk(image: Image.Image, generator: np.random.Generator) -> Image.Image:
    """From far away: few pixels, enlarged, and sharpened by the phone."""
    factor = generator.uniform(*SHRUNK)
    small = image.resize(
        (max(8, round(image.width * factor)), max(8, round(image.height * factor))),
        Image.Resampling.BILINEAR,
    )
    return small.resize(image.size, Image.Resampling.BICUBIC).filter(ImageFilter.SHARPEN)


def _of(values: Floats) -> Image.Image:
    return Image.fromarray(np.clip(values, 0, 255).round().astype(np.uint8))
