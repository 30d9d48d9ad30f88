"""To the encoder's input size, and to the size of a thumbnail."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

THUMBNAIL_SIDE = 160
"""Longest side of a gallery thumbnail, pixels: two columns on a phone at double density."""


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """From an upright RGB image to the encoder's input size.

    Attributes
    ----------
    height, width : the encoder's input, pixels.
    fit : ``stretch`` changes the aspect ratio; ``cover`` keeps it and crops the centre.
    resample : interpolation; Pillow's, which averages when it shrinks.
    decoding : ``reduced`` lets `decode_image` decode a JPEG at a fraction of its size that is still
        larger than what is wanted of it; ``full``, of encoders made before there was a choice, does
        not. Gallery and queries are decoded alike.
    """

    height: int
    width: int
    fit: Literal["stretch", "cover"] = "stretch"
    resample: Literal["bilinear", "bicubic"] = "bilinear"
    decoding: Literal["full", "reduced"] = "full"

    @property
    def smallest_side(self) -> int | None:
        """The pixels below which `decode_image` reduces no side of a JPEG; None for no reduction.

        Twice the input, so that resizing still averages over pixels, and twice a thumbnail.
        """
        if self.decoding == "full":
            return None
        return 2 * max(self.height, self.width, THUMBNAIL_SIDE)

    @property
    def n_bytes(self) -> int:
        """The bytes of one image at the encoder's input size."""
        return 3 * self.height * self.width

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize ``pixels`` (H, W, 3) to (height, width, 3), uint8."""
        if pixels.shape == (self.height, self.width, 3):
            return pixels
        image = Image.fromarray(pixels)
        resample = Image.Resampling[self.resample.upper()]
        size = (self.width, self.height)
        if self.fit == "cover":
            return np.asarray(ImageOps.fit(image, size, resample))
        return np.asarray(image.resize(size, resample))


def encode_thumbnail(pixels: NDArray[np.uint8]) -> tuple[bytes, str]:
    """Re-encode ``pixels`` (H, W, 3) for display; returns the bytes and their media type.

    Small images stay lossless, so that what a viewer sees is what the encoder saw.
    """
    image = Image.fromarray(pixels)
    buffer = io.BytesIO()
    if max(image.size) <= THUMBNAIL_SIDE // 2:
        grey = bool((pixels[..., :1] == pixels).all())
        (image.convert("L") if grey else image).save(buffer, "PNG")
        return buffer.getvalue(), "image/png"
    image.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue(), "image/jpeg"
