"""Conversion of pictures with ICC colour profiles to sRGB."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageCms

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
