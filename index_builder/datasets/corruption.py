"""Corrupted images and vectors (blurred, noisy, rotated), and augmented views."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter

from .images import LabelledImages, Pixels, changed

BLUR = 1 / 14
"""Blur radius relative to the longer side. A blur of this radius keeps strong edges and removes
texture."""

NOISE = 60
"""Standard deviation of the noise, in grey levels from 0 to 255."""

NOISE_AT_ONCE = 2**18
"""Maximum number of noise values per draw. A single draw of all values for a large image needs a
gigabyte of memory and six times as much time."""

EXCHANGED = (0.25, 0.5, 1.0)
"""Shares of a vector's numbers that are replaced by numbers of other vectors."""

N_OTHERS = 16
"""Number of other vectors from which the replacement numbers of one vector are taken."""


def corrupted(images: LabelledImages, seed: int) -> LabelledImages:
    """Return corrupted images: blurred, noisy and rotated images alternate."""

    def change(pixels: Pixels, position: int) -> Pixels:
        if position % 3 == 0:
            return blurred(pixels)
        if position % 3 == 1:
            return noisy(pixels, np.random.default_rng([seed, position]))
        return np.ascontiguousarray(np.rot90(pixels))

    return changed(images, f"corrupted {seed}", change)


def corrupted_vectors(images: LabelledImages, seed: int) -> LabelledImages:
    """Replace a quarter, a half or all of the numbers of each vector; the shares alternate.

    A number is replaced by the number at the same position of another vector. So the distribution
    at each position does not change. But numbers at different positions become independent, as in
    the synthetic samples of Breiman 2001.
    """

    def change(row: Pixels, position: int) -> Pixels:
        generator = np.random.default_rng([seed, position])
        others = [images.pixels(other) for other in generator.integers(len(images), size=N_OTHERS)]
        drawn = np.choose(generator.integers(N_OTHERS, size=row.shape), others)
        share = EXCHANGED[position % len(EXCHANGED)]
        return np.where(generator.random(row.shape) < share, drawn, row)

    return changed(images, f"corrupted vectors {seed}", change)


def blurred(pixels: Pixels) -> Pixels:
    """Return a blurred image."""
    radius = BLUR * max(pixels.shape)
    return np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(radius)))


def noisy(pixels: Pixels, generator: np.random.Generator, std: float = NOISE) -> Pixels:
    """Return an image with Gaussian noise in every channel."""
    spoilt = np.empty_like(pixels)
    n_rows = max(1, NOISE_AT_ONCE // pixels[0].size)
    for start in range(0, len(pixels), n_rows):
        rows = slice(start, start + n_rows)
        noise: NDArray[np.float64] = generator.normal(0, std, pixels[rows].shape)
        noise += pixels[rows]
        spoilt[rows] = np.clip(noise, 0, 255, out=noise).round(out=noise)
    return spoilt


def _cropped(pixels: Pixels, strength: float, generator: np.random.Generator) -> Pixels:
    height, width = (max(8, round((1 - 0.8 * strength) * side)) for side in pixels.shape[:2])
    height, width = min(height, pixels.shape[0]), min(width, pixels.shape[1])
    top = int(generator.integers(pixels.shape[0] - height + 1))
    left = int(generator.integers(pixels.shape[1] - width + 1))
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])


def _out_of_focus(pixels: Pixels, strength: float, _: np.random.Generator) -> Pixels:
    radius = (0.004 + 0.08 * strength) * max(pixels.shape)
    return np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(radius)))


def _with_noise(pixels: Pixels, strength: float, generator: np.random.Generator) -> Pixels:
    return noisy(pixels, generator, 8 + 110 * strength)


def _darkened(pixels: Pixels, strength: float, _: np.random.Generator) -> Pixels:
    return (pixels * (0.04 + 0.6 * (1 - strength))).astype(np.uint8)


def _compressed(pixels: Pixels, strength: float, _: np.random.Generator) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=round(2 + 35 * (1 - strength)))
    return np.asarray(Image.open(file))


DEGRADE: Mapping[str, Callable[[Pixels, float, np.random.Generator], Pixels]] = {
    "crop": _cropped,
    "blur": _out_of_focus,
    "noise": _with_noise,
    "dark": _darkened,
    "jpeg": _compressed,
}
"""Functions that degrade an image with a strength between 0 and 1."""

DEGRADATIONS = tuple(DEGRADE)


def degraded(
    images: LabelledImages, seed: int, kinds: Sequence[str] = DEGRADATIONS
) -> LabelledImages:
    """Return degraded images; the kinds of degradation alternate, and the strength is random.

    The kinds are crop, blur, noise, darkening and strong JPEG compression.

    Parameters
    ----------
    kinds : keys of `DEGRADE`, in the order of their use.
    """

    def change(pixels: Pixels, position: int) -> Pixels:
        generator = np.random.default_rng([seed, position, 1])
        strength = float(generator.random())
        return DEGRADE[kinds[position % len(kinds)]](pixels, strength, generator)

    return changed(images, f"degraded {seed} {' '.join(kinds)}", change)


KEPT = (0.6, 0.95)
"""Minimum and maximum share of the width that a crop keeps; the same limits hold for the height."""

TURN = 8.0
"""Maximum rotation in degrees, in either direction."""

LIGHT = (0.7, 1.3)
"""Range of the factors for brightness and for contrast."""

VIEW_BLUR = 1 / 120
"""Maximum blur radius relative to the longer side."""

QUALITY = (30, 85)
"""Range of the JPEG quality."""


def views(images: LabelledImages, seed: int) -> LabelledImages:
    """Return a view of each image, with the same id and label; each seed gives different views."""

    def change(pixels: Pixels, position: int) -> Pixels:
        return view(pixels, np.random.default_rng([seed, position]))

    return changed(images, f"view {seed}", change)


def view(pixels: Pixels, generator: np.random.Generator) -> Pixels:
    """Rotate, crop, change brightness and contrast, blur and compress an image at random."""
    image = Image.fromarray(pixels)
    image = image.rotate(generator.uniform(-TURN, TURN), Image.Resampling.BILINEAR)
    width, height = (
        max(1, round(side * generator.uniform(*KEPT))) for side in (image.width, image.height)
    )
    left = int(generator.integers(0, image.width - width + 1))
    top = int(generator.integers(0, image.height - height + 1))
    image = image.crop((left, top, left + width, top + height))
    image = ImageEnhance.Brightness(image).enhance(generator.uniform(*LIGHT))
    image = ImageEnhance.Contrast(image).enhance(generator.uniform(*LIGHT))
    image = image.filter(
        ImageFilter.GaussianBlur(generator.uniform(0, VIEW_BLUR) * max(image.size))
    )
    sent = io.BytesIO()
    image.save(sent, "JPEG", quality=int(generator.integers(*QUALITY)))
    return np.asarray(Image.open(sent).convert("RGB"))
