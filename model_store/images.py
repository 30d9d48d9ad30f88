"""Bytes to pixels: the one decoder that builder and service share.

A second copy is how train/serve skew is born, so everything that turns an image file into the
encoder's input is here: accepted formats, limits, orientation, colour, and the resize.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageOps

from model_store.errors import (
    CorruptImage,
    EmptyImage,
    ImageTooCostly,
    ImageTooLarge,
    UnsupportedImage,
)

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Accepted formats. Pillow registers some forty more, most of them attack surface."""

TOO_MUCH_MEMORY = (
    "Decoding the image takes more memory than one image may. Send a smaller image, or a plainer "
    "kind of file (a baseline JPEG)."
)

THUMBNAIL_SIDE = 160
"""Longest side of a gallery thumbnail, pixels: two columns on a phone at double density."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """What is refused before a single pixel is decoded.

    Attributes
    ----------
    max_bytes : size of the file.
    max_pixels : width × height; 40 million is a current phone's full resolution.
    """

    max_bytes: int = 20 * 2**20
    max_pixels: int = 40_000_000


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """An image as the encoder's preprocessing wants it.

    Attributes
    ----------
    pixels : (H, W, 3) uint8, RGB, upright.
    format : the format found in the bytes.
    width, height : after the orientation was applied, pixels.
    warnings : what was changed or ignored, one sentence each.
    """

    pixels: NDArray[np.uint8]
    format: str
    width: int
    height: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """From an upright RGB image to the encoder's input size.

    Attributes
    ----------
    height, width : the encoder's input, pixels.
    fit : ``stretch`` changes the aspect ratio; ``cover`` keeps it and crops the centre.
    resample : interpolation; Pillow's, which averages when it shrinks.
    """

    height: int
    width: int
    fit: Literal["stretch", "cover"] = "stretch"
    resample: Literal["bilinear", "bicubic"] = "bilinear"

    @property
    def n_bytes(self) -> int:
        """Of one image at the encoder's input size."""
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


def decode_image(data: bytes, limits: ImageLimits | None = None) -> DecodedImage:
    """Decode an uploaded or indexed file.

    Sixteen-bit images are rescaled to eight, transparency is laid on white, CMYK goes through its
    colour profile, EXIF orientation is applied, and only the first frame of an animation is kept;
    each leaves a sentence in ``warnings``.

    Raises
    ------
    EmptyImage, UnsupportedImage, ImageTooLarge, ImageTooCostly, CorruptImage
    """
    limits = limits or ImageLimits()
    check_size(data, limits)
    try:
        return _decoded(data, limits)
    except MemoryError as error:
        raise ImageTooCostly(TOO_MUCH_MEMORY) from error


def check_size(data: bytes, limits: ImageLimits) -> None:
    """Refuse a file by how many bytes it has, which needs no look at them.

    Raises
    ------
    EmptyImage, ImageTooLarge
    """
    if not data:
        raise EmptyImage("The upload is empty (0 bytes). Send the bytes of one image file.")
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(
            f"The image has {len(data):,} bytes; at most {limits.max_bytes:,} are accepted. "
            "Send a smaller or more compressed image."
        )


def _decoded(data: bytes, limits: ImageLimits) -> DecodedImage:
    image = _open(data, limits)
    try:
        image.load()
        pixels, warnings = _upright_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's parsers raise whatever the damage makes them raise
        raise CorruptImage(
            f"The {image.format} image is damaged or truncated and cannot be decoded. "
            "Send a complete file."
        ) from error
    height, width = pixels.shape[:2]
    return DecodedImage(pixels, str(image.format), width, height, tuple(warnings))


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


def _open(data: bytes, limits: ImageLimits) -> Image.Image:
    """Read the header only, and refuse by what it says."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageTooLarge(
            f"The image has far more than {limits.max_pixels:,} pixels. Send a smaller image."
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow's header parsers raise whatever the damage makes them raise
        raise UnsupportedImage(
            f"The {len(data):,} bytes received are not an image in an accepted format. "
            f"Accepted: {', '.join(FORMATS)}."
        ) from error
    width, height = image.size
    if width * height > limits.max_pixels:
        raise ImageTooLarge(
            f"The image is {width} × {height} = {width * height:,} pixels; at most "
            f"{limits.max_pixels:,} are accepted. Send a smaller image."
        )
    return image


def _upright_rgb(image: Image.Image) -> tuple[NDArray[np.uint8], list[str]]:
    """Convert the first frame to upright RGB, saying what was changed."""
    warnings = []
    upright = image
    if getattr(image, "n_frames", 1) > 1:
        warnings.append("The image is animated or has several pages; only the first was used.")
    if image.getexif().get(0x0112, 1) != 1:
        warnings.append("The orientation stored in the file was applied.")
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith(("I", "F")):
        warnings.append("More than eight bits per channel were rescaled to eight.")
        upright = _eight_bit(upright)
    if upright.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in upright.info:
        warnings.append("Transparent areas were laid on white.")
        rgba = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    if upright.mode in {"CMYK", "YCCK", "LAB"}:
        warnings.append("The print colours were converted to screen colours.")
        upright = _through_profile(upright)
    return np.asarray(upright if upright.mode == "RGB" else upright.convert("RGB")), warnings


def _eight_bit(image: Image.Image) -> Image.Image:
    """Rescale sixteen-bit integers by their range, and other depths by their own extremes.

    Pillow's own conversion clips instead: nearly every pixel of a 16-bit photograph turns white.
    """
    values = np.asarray(image)
    if image.mode.startswith("I") and values.min() >= 0 and values.max() <= 65_535:
        # The high byte, in place of a division: large images must not be held in wider types.
        return Image.fromarray((values >> 8).astype(np.uint8))
    finite = np.nan_to_num(values.astype(np.float32), posinf=0, neginf=0)
    low, high = float(finite.min()), float(finite.max())
    finite -= low
    finite *= 255 / max(high - low, 1e-12)
    return Image.fromarray(finite.round().astype(np.uint8))


def _through_profile(image: Image.Image) -> Image.Image:
    """Convert through the embedded ICC profile, or plainly when there is none that works."""
    profile = image.info.get("icc_profile")
    if profile:
        try:
            source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            converted = ImageCms.profileToProfile(
                image, source, ImageCms.createProfile("sRGB"), outputMode="RGB"
            )
        except (ImageCms.PyCMSError, OSError):
            return image
        if converted is not None:
            return converted
    return image
