"""Resizing to the encoder's input, and to thumbnails and previews."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

THUMBNAIL_SIDE = 160
"""Longest side of a gallery thumbnail in pixels. This size is enough for two columns on a phone
with double pixel density."""

MOST_PREVIEW_SIDE = 1024
"""Maximum length of a preview's longer side, in pixels."""


Fit = Literal["stretch", "cover", "pad"]
Resample = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Converts an upright RGB image to the encoder's input size.

    An image is first resized to fit a square or the input size. Then the image is cropped at its
    centre, or padded, to the input size. Sizes and offsets are rounded as in torchvision, timm and
    OpenCLIP, so that encoders from these libraries get the same pixels.

    Attributes
    ----------
    height, width : size of the encoder's input in pixels.
    fit : ``stretch`` changes the aspect ratio. ``cover`` keeps the aspect ratio and crops. ``pad``
        keeps the aspect ratio and adds a border.
    resample : interpolation method of Pillow. Pillow averages over pixels if it makes an image
        smaller.
    decoding : ``reduced`` lets `decode_image` decode a JPEG at a fraction of its size, but not
        below `smallest_side`. ``full`` is for encoders of earlier releases. Gallery images and
        queries are decoded in the same way.
    resized_side : side in pixels of the square to which an image is resized before the crop, for
        example 256 for a crop of 224. None to resize to the input size.
    fill : colour of the border, ``#rrggbb``.
    crop_offset : rounding of half pixels in the offset of the crop. ``even`` rounds to the nearest
        even number, as torchvision does. ``down`` rounds down, as transformers does.
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
        """Minimum side in pixels for reduced decoding in `decode_image`; None for full decoding.

        The minimum is at least twice the input size and twice the thumbnail size, so that resizing
        still averages over pixels.
        """
        if self.decoding == "full":
            return None
        return 2 * max(self.height, self.width, self.resized_side or 0, THUMBNAIL_SIDE)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the encoder's input for one image."""
        return self.height, self.width, 3

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """The data type of the encoder's input."""
        return np.dtype(np.uint8)

    @property
    def n_bytes(self) -> int:
        """Size in bytes of one image at the encoder's input size."""
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
        """Return the width and height to which an image of ``size`` is resized, before the crop."""
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
        """Return the left and top position of a resized image on the input.

        A position is negative if the image is cropped there. The widths of the left and top borders
        are rounded down.
        """
        cut_off = round if self.crop_offset == "even" else int
        spare = self.width - size[0], self.height - size[1]
        left, top = (one // 2 if one > 0 else -cut_off(-one / 2) for one in spare)
        return left, top


def encode_thumbnail(pixels: NDArray[np.uint8]) -> tuple[bytes, str]:
    """Encode ``pixels`` (H, W, 3) as a thumbnail; return the bytes and their media type.

    Small images are encoded losslessly, so that users see the same pixels as the encoder.
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


def encode_icon(thumbnail: bytes, side: int) -> bytes | None:
    """Re-encode a thumbnail as a JPEG with sides of at most ``side`` pixels.

    The result is None if no side of the thumbnail is longer than ``side``.
    """
    image = Image.open(io.BytesIO(thumbnail))
    if max(image.size) <= side:
        return None
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def encode_preview(
    pixels: NDArray[np.uint8], side: int | None, again: Callable[[int], NDArray[np.uint8]]
) -> bytes:
    """Encode an image as a JPEG preview for reviewers.

    The result is empty if ``side`` is None, or if the image is not larger than its thumbnail.

    Parameters
    ----------
    pixels : (H, W, 3), possibly from reduced decoding.
    side : maximum length of the preview's longer side, in pixels.
    again : function that decodes the same image with a given minimum side. `encode_preview` calls
        this function if the longer side of ``pixels`` is shorter than ``side``.
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
