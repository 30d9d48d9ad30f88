"""A decoded frame of whatever kind, as upright 8-bit RGB.

Large images are converted a strip at a time: every conversion here looks at one pixel only, and
whole intermediate images would take several times the memory of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from model_store.images.profiles import BrokenProfile, to_srgb

_STRIP_PIXELS = 2**20

TURNED = "The orientation stored in the file was applied."

_UPRIGHT: dict[int, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: np.rot90,
}
"""The operation that turns an image of each EXIF orientation upright."""

TRANSPOSED = frozenset({5, 6, 7, 8})
"""Orientations that exchange width and height."""

_Step = Callable[[Image.Image], Image.Image]


def orientation(image: Image.Image) -> int | None:
    """Return the EXIF orientation of a picture; None where it is upright or unreadable.

    Unreadable EXIF is no reason to refuse the picture: cameras write broken EXIF too.
    """
    try:
        value = image.getexif().get(0x0112)
    except MemoryError:
        raise
    except Exception:  # Pillow raises whatever the damage makes it raise
        return None
    return value if isinstance(value, int) and value in _UPRIGHT else None


def upright_rgb(image: Image.Image) -> tuple[NDArray[np.uint8], list[str]]:
    """Convert a loaded frame to upright RGB, (H, W, 3), saying what was changed."""
    warnings: list[str] = []
    pixels = _rgb(image, _steps(image, warnings))
    turned = orientation(image)
    if turned is not None:
        warnings.insert(0, TURNED)
        pixels = np.ascontiguousarray(_UPRIGHT[turned](pixels))
    return pixels, warnings


def _steps(image: Image.Image, warnings: list[str]) -> list[_Step]:
    """Return the steps that convert strips of ``image`` to RGB, in order."""
    steps: list[_Step] = []
    mode = image.mode
    profile = image.info.get("icc_profile")
    if mode.startswith(("I", "F")):
        warnings.append("More than eight bits per channel were rescaled to eight.")
        steps.append(_eight_bit(image))
        mode = "L"
    elif mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info:
        warnings.append("Transparent areas were laid on white.")
        steps.append(_on_white)
        mode = "RGB"
    elif mode in {"CMYK", "LAB"}:
        warnings.append("The print colours were converted to screen colours.")
    elif mode not in {"RGB", "L"}:
        steps.append(lambda strip: strip.convert("RGB"))
        mode = "RGB"
    if profile and image.mode in {"1", "LA", "La"}:
        steps.append(lambda strip: strip.convert("L"))
        mode = "L"
    if profile:
        try:
            convert = to_srgb(profile, mode)
        except BrokenProfile:
            warnings.append("The colour profile in the file cannot be used and was ignored.")
        else:
            if convert is not None:
                steps.append(convert)
                if mode in {"RGB", "L"}:
                    warnings.append("The colours were converted from the file's profile to sRGB.")
    return steps


def _rgb(image: Image.Image, steps: list[_Step]) -> NDArray[np.uint8]:
    """Put ``image`` through ``steps``, strip by strip."""

    def converted(strip: Image.Image) -> NDArray[np.uint8]:
        for step in steps:
            strip = step(strip)
        return np.asarray(strip if strip.mode == "RGB" else strip.convert("RGB"))

    if image.width * image.height <= _STRIP_PIXELS:
        return converted(image)
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for top, strip in _strips(image):
        pixels[top : top + strip.height] = converted(strip)
    return pixels


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Cut ``image`` into strips, each with its first row."""
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _on_white(strip: Image.Image) -> Image.Image:
    rgba = strip.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _eight_bit(image: Image.Image) -> _Step:
    """Rescale sixteen-bit integers by their range, and other depths by their own extremes.

    Pillow's own conversion clips instead: nearly every pixel of a 16-bit photograph turns white.
    """
    extremes = [(values.min(), values.max()) for values in _values(image)]
    low, high = float(min(low for low, _ in extremes)), float(max(high for _, high in extremes))
    if image.mode.startswith("I") and low >= 0 and high <= 65_535:
        return lambda strip: Image.fromarray((np.asarray(strip) >> 8).astype(np.uint8))

    def rescale(strip: Image.Image) -> Image.Image:
        values = _finite(strip)
        values -= low
        values *= 255 / max(high - low, 1e-12)
        return Image.fromarray(values.round().astype(np.uint8))

    return rescale


def _values(image: Image.Image) -> Iterator[NDArray[np.float32]]:
    return (_finite(strip) for _, strip in _strips(image))


def _finite(strip: Image.Image) -> NDArray[np.float32]:
    """Values as numbers; those that are none are 0."""
    return np.nan_to_num(np.asarray(strip).astype(np.float32), posinf=0, neginf=0)
