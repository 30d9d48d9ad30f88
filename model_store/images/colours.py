"""Conversion of any decoded frame to upright 8-bit RGB.

Large images are converted in strips, because complete intermediate images would need several times
the memory of the result. Strips are possible, because each conversion works pixel by pixel.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import TiffImageFile

from model_store.images.depth import Scale, extremes, scale_of
from model_store.images.statements import BROKEN_PROFILE, ColourStatement

_STRIP_PIXELS = 2**20
_EXTRA_SAMPLES = 338

TURNED = "The orientation stored in the file was applied."
CONVERTED = "The colours were converted from"
"""Beginning of the warning about a colour conversion that the file requires."""

_UPRIGHT: dict[int, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: np.rot90,
}
"""The operation that turns an image upright, for each EXIF orientation."""

TRANSPOSED = frozenset({5, 6, 7, 8})
"""EXIF orientations that exchange width and height."""

_Step = Callable[[Image.Image], Image.Image]


def orientation(image: Image.Image) -> int | None:
    """Return the EXIF orientation of a picture; None if it is upright, or EXIF is unreadable.

    A picture with unreadable EXIF is accepted, because some cameras write broken EXIF.
    """
    try:
        value = image.getexif().get(0x0112)
    except MemoryError:
        raise
    except Exception:  # damaged data can raise any exception in Pillow
        return None
    return value if isinstance(value, int) and value in _UPRIGHT else None


def upright_rgb(
    image: Image.Image, statement: ColourStatement | None = None
) -> tuple[NDArray[np.uint8], list[str]]:
    """Convert a loaded frame to upright RGB (H, W, 3); return the pixels and warnings.

    Parameters
    ----------
    statement : colour space that the file states in addition to an ICC profile.
    """
    warnings: list[str] = []
    pixels = _rgb(image, _steps(image, statement or ColourStatement(), warnings))
    turned = orientation(image)
    if turned is not None:
        warnings.insert(0, TURNED)
        pixels = np.ascontiguousarray(_UPRIGHT[turned](pixels))
    return pixels, warnings


def _steps(image: Image.Image, statement: ColourStatement, warnings: list[str]) -> list[_Step]:
    """Return the ordered steps that convert a strip of ``image`` to RGB."""
    steps: list[_Step] = []
    mode = image.mode
    is_deep = mode.startswith(("I", "F"))
    key = _transparent_value(image)
    if is_deep:
        scale = _scale(image)
        warnings.append(scale.warning)
        steps.append(_eight_bits_on_white(scale, key) if key is not None else _eight_bits(scale))
        mode = "L"
    elif key is not None:
        steps.append(_key_on_white(key))
        mode = "RGB"
    elif _has_alpha(image):
        steps.append(_on_white)
        mode = "RGB"
    elif mode in {"CMYK", "LAB"}:
        warnings.append("The print colours were converted to screen colours.")
    elif mode not in {"RGB", "L"}:
        steps.append(lambda strip: strip.convert("RGB"))
        mode = "RGB"
    if key is not None or (not is_deep and _has_alpha(image)):
        warnings.append("Transparent areas were made white.")
    return steps + _colour_steps(image, mode, statement, warnings)


def _colour_steps(
    image: Image.Image, mode: str, statement: ColourStatement, warnings: list[str]
) -> list[_Step]:
    """Return the ordered steps that convert the file's colours, in ``mode``, to sRGB."""
    steps: list[_Step] = []
    profile = image.info.get("icc_profile")
    name = ""
    if statement.is_stronger or not profile:
        profile, name = statement.profile, statement.name
        if statement.warning:
            warnings.append(statement.warning)
        if profile and mode == "L":
            steps.append(lambda strip: strip.convert("RGB"))
            mode = "RGB"
    elif image.mode in {"1", "LA", "La"}:
        steps.append(lambda strip: strip.convert("L"))
        mode = "L"
    if profile:
        try:
            convert = to_srgb(profile, mode)
        except BrokenProfile:
            warnings.append(BROKEN_PROFILE)
        else:
            if convert is not None:
                steps.append(convert)
                if mode in {"RGB", "L"}:
                    warnings.append(
                        f"The colours were converted from {name} to sRGB."
                        if name
                        else "The colours were converted from the file's profile to sRGB."
                    )
    return steps


def _has_alpha(image: Image.Image) -> bool:
    """Return whether parts of a picture may be transparent.

    A BMP is opaque if its alpha is zero everywhere, because programs without support for alpha
    write such files. A TIFF is opaque if the meaning of its fourth channel is not declared.
    """
    is_declared = image.format != "BMP" and not (
        isinstance(image, TiffImageFile) and _EXTRA_SAMPLES not in image.tag_v2
    )
    if image.mode == "RGBA" and not is_declared:
        return image.getchannel("A").getextrema() != (0, 0)
    return image.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info


def _transparent_value(image: Image.Image) -> tuple[int, ...] | None:
    """Return a PNG's transparent grey or colour, at the bit depth of the pixels; None if missing.

    The file stores the transparent value in the depth of the file: 1 to 16 bits. Pillow's pixels
    have 8 bits, or 16 bits for greys.
    """
    value = image.info.get("transparency")
    is_grey = image.mode in {"1", "L"} or image.mode.startswith("I")
    if image.format != "PNG" or not (is_grey or image.mode == "RGB"):
        return None
    values = (value,) if isinstance(value, int) else value
    if not isinstance(values, tuple) or not all(isinstance(one, int) for one in values):
        return None
    depth = int(image.info.get("bit_depth", 8))
    if depth == 16 and image.mode == "RGB":
        return tuple(one >> 8 for one in values)
    if depth < 8 and image.mode == "L":
        return tuple(one * 255 // ((1 << depth) - 1) for one in values)
    return values


def _key_on_white(key: tuple[int, ...]) -> _Step:
    def on_white(strip: Image.Image) -> Image.Image:
        pixels = np.array(strip.convert("RGB"))
        pixels[(pixels == key).all(axis=-1)] = 255
        return Image.fromarray(pixels)

    return on_white


def _rgb(image: Image.Image, steps: list[_Step]) -> NDArray[np.uint8]:
    """Apply ``steps`` to ``image``, strip by strip."""

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
    """Yield (first row, strip) for the strips of ``image``."""
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _on_white(strip: Image.Image) -> Image.Image:
    rgba = strip.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _scale(image: Image.Image) -> Scale:
    """Return the scale of a picture with more than eight bits per channel.

    Pillow's conversion would clip values, and nearly every pixel of a 16-bit photograph would
    become white.
    """
    found = [extremes(np.asarray(strip)) for _, strip in _strips(image)]
    dtype = np.dtype(np.uint16) if image.mode.startswith("I;16") else np.asarray(image).dtype
    return scale_of(dtype, min(low for low, _ in found), max(high for _, high in found))


def _eight_bits(scale: Scale) -> _Step:
    return lambda strip: Image.fromarray(scale(np.asarray(strip)))


def _eight_bits_on_white(scale: Scale, key: tuple[int, ...]) -> _Step:
    def on_white(strip: Image.Image) -> Image.Image:
        values = np.asarray(strip)
        pixels = scale(values)
        pixels[values == key[0]] = 255
        return Image.fromarray(pixels)

    return on_white


MAX_PROFILE_BYTES = 4 * 2**20
"""Maximum size of a profile in bytes; a larger profile is treated as broken. The largest real
profiles are for printing presses and have up to 3 MiB."""

_COLOUR_SPACES = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK", "LAB": "Lab"}

_SAME = 2
"""Maximum change of 8-bit values by a profile that is treated as sRGB. Variants of the sRGB profile
differ by rounding. A conversion from such a variant would add noise to nearly every photograph."""


class BrokenProfile(Exception):
    """The profile is damaged, too large, or made for another kind of picture."""


def to_srgb(profile: bytes, mode: str) -> Callable[[Image.Image], Image.Image] | None:
    """Return the conversion of images in ``mode`` to sRGB; None if the profile is already sRGB.

    Raises
    ------
    BrokenProfile
    """
    if len(profile) > MAX_PROFILE_BYTES or mode not in _COLOUR_SPACES:
        raise BrokenProfile
    transform = _transform(profile, mode)

    def convert(image: Image.Image) -> Image.Image:
        converted = ImageCms.applyTransform(image, transform)
        if converted is None:
            raise BrokenProfile
        return converted

    return None if mode in {"RGB", "L"} and _is_srgb(convert, mode) else convert


@functools.lru_cache(maxsize=8)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform:
    """Build a transform. All files of a camera have one profile, so transforms are cached."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space.strip() != _COLOUR_SPACES[mode]:
            raise BrokenProfile
        return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        raise BrokenProfile from error


def _is_srgb(convert: Callable[[Image.Image], Image.Image], mode: str) -> bool:
    """Return whether a conversion leaves a grid of colours or greys almost unchanged."""
    steps = np.arange(0, 256, 17, dtype=np.uint8)
    if mode == "L":
        probe = Image.fromarray(steps[None])
    else:
        cube = np.stack(np.meshgrid(steps, steps, steps), axis=-1)
        probe = Image.fromarray(cube.reshape(len(steps), -1, 3))
    change = np.asarray(convert(probe), dtype=int) - np.asarray(probe.convert("RGB"), dtype=int)
    return bool(np.abs(change).max() <= _SAME)
