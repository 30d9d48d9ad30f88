"""To the encoder's input size, and to the sizes of thumbnails and previews."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

THUMBNAIL_SIDE = 160
"""Longest side of a gallery thumbnail, pixels: two columns on a phone at double density."""

MOST_PREVIEW_SIDE = 1024
"""Longest side of a preview at most, pixels."""


Fit = Literal["stretch", "cover", "pad"]
Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """From an upright RGB image to the encoder's input size.

    An image is resized to fit a square or the input itself, and what is then larger than the input
    is cropped at its centre, what is smaller padded. The sizes and offsets are rounded as
    torchvision, timm and OpenCLIP round them, so that their encoders see the same pixels here.

    Attributes
    ----------
    height, width : the encoder's input, pixels.
    fit : ``stretch`` changes the aspect ratio; ``cover`` keeps it and crops; ``pad`` keeps it and
        adds a border.
    resample : interpolation; Pillow's, which averages when it shrinks.
    decoding : ``reduced`` lets `decode_image` decode a JPEG at a fraction of its size that is still
        larger than what is wanted of it; ``full``, of encoders made before there was a choice, does
        not. Gallery and queries are decoded in the same way.
    resized_side : side of the square that an image is fitted to before the crop, pixels: 256 of
        the usual 224 from 256. None for the input's own height and width.
    fill : colour of the border, ``#rrggbb``.
    crop_offset : of half an odd number of pixels; ``even`` rounds to the next even one, as
        torchvision does, ``down`` as transformers does.
    """

    height: int
    width: int
    fit: Fit = "stretch"
    resample: Resample = "bilinear"
    decoding: Literal["full", "reduced"] = "full"
    resized_side: int | None = None
    fill: str = "#000000"
    crop_offset: Literal["even", "down"] = "even"

    @property
    def smallest_side(self) -> int | None:
        """The pixels below which `decode_image` reduces no side of a JPEG; None for no reduction.

        Twice the input, so that resizing still averages over pixels, and twice a thumbnail.
        """
        if self.decoding == "full":
            return None
        return 2 * max(self.height, self.width, self.resized_side or 0, THUMBNAIL_SIDE)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The encoder's input for one image, (H, W, 3)."""
        return self.height, self.width, 3

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """The type of the encoder's input."""
        return np.dtype(np.uint8)

    @property
    def n_bytes(self) -> int:
        """The bytes of one image at the encoder's input size."""
        return 3 * self.height * self.width

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Resize ``pixels`` (H, W, 3) to (height, width, 3), uint8."""
        if pixels.shape == (self.height, self.width, 3) and self.resized_side is None:
            return pixels
        image = Image.fromarray(pixels)
        resized = image.resize(self._resized(image.size), Image.Resampling[self.resample.upper()])
        if resized.size == (self.width, self.height):
            return np.asarray(resized)
        canvas = Image.new("RGB", (self.width, self.height), self.fill)
        canvas.paste(resized, self._offset(resized.size))
        return np.asarray(canvas)

    def _resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return width and height before the crop of an image of ``size`` (width, height)."""
        width, height = size
        side = self.resized_side
        to_width, to_height = (self.width, self.height) if side is None else (side, side)
        if self.fit == "stretch":
            return to_width, to_height
        if self.fit == "pad":
            ratio = max(width / to_width, height / to_height)
            return max(1, round(width / ratio)), max(1, round(height / ratio))
        if to_width * height >= to_height * width:
            return to_width, int(to_width * height / width)
        return int(to_height * width / height), to_height

    def _offset(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return where an image of ``size`` (width, height) lies on the input; below 0 is cut off.

        A border's first half is rounded down.
        """
        cut_off = round if self.crop_offset == "even" else int
        spare = self.width - size[0], self.height - size[1]
        left, top = (one // 2 if one > 0 else -cut_off(-one / 2) for one in spare)
        return left, top


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


def encode_preview(
    pixels: NDArray[np.uint8], side: int | None, again: Callable[[int], NDArray[np.uint8]]
) -> bytes:
    """Re-encode an image to decide by, as JPEG.

    Nothing where no ``side`` is wanted, or the image is no larger than its thumbnail.

    Parameters
    ----------
    pixels : (H, W, 3), maybe reduced when it was decoded.
    side : the longest of the preview at most, pixels.
    again : decodes the same image, reduced to sides of at least so many pixels; asked where
        ``pixels`` are fewer than the preview may have.
    """
    if side is None:
        return b""
    image = Image.fromarray(again(side) if max(pixels.shape[:2]) < side else pixels)
    if max(image.size) <= THUMBNAIL_SIDE:
        return b""
    buffer = io.BytesIO()
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    image.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
