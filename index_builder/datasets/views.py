"""Augmented views of images, which are the queries of a gallery without labels."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

from index_builder.datasets.images import LabelledImages, Pixels, changed

KEPT = (0.6, 0.95)
"""Minimum and maximum share of the width that a crop keeps; the same limits hold for the height."""

TURN = 8.0
"""Maximum rotation in degrees, in either direction."""

LIGHT = (0.7, 1.3)
"""Range of the factors for brightness and for contrast."""

BLUR = 1 / 120
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
    image = image.filter(ImageFilter.GaussianBlur(generator.uniform(0, BLUR) * max(image.size)))
    sent = io.BytesIO()
    image.save(sent, "JPEG", quality=int(generator.integers(*QUALITY)))
    return np.asarray(Image.open(sent).convert("RGB"))
