"""ICC colour profiles: what the numbers of a picture stand for, where that is not sRGB."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageCms

MAX_PROFILE_BYTES = 4 * 2**20
"""Bytes of a profile at most; a larger one counts as broken. Those of presses, the largest there
are, have up to 3 MiB."""

_COLOUR_SPACES = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK", "LAB": "Lab"}

_SAME = 2
"""Difference of 8-bit values up to which a profile is sRGB by another name: its many editions
differ by rounding, and converting them would change nearly every photograph by noise."""


class BrokenProfile(Exception):
    """The profile is damaged, too large, or one for another kind of picture."""


def to_srgb(profile: bytes, mode: str) -> Callable[[Image.Image], Image.Image] | None:
    """The conversion of images of ``mode`` to sRGB; None where their numbers are sRGB already.

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
    """A camera writes the same profile into each of its files, and reading one takes time."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space.strip() != _COLOUR_SPACES[mode]:
            raise BrokenProfile
        return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        raise BrokenProfile from error


def _is_srgb(convert: Callable[[Image.Image], Image.Image], mode: str) -> bool:
    """Return whether a conversion leaves colours all over the cube, or all greys, unchanged."""
    steps = np.arange(0, 256, 17, dtype=np.uint8)
    if mode == "L":
        probe = Image.fromarray(steps[None])
    else:
        cube = np.stack(np.meshgrid(steps, steps, steps), axis=-1)
        probe = Image.fromarray(cube.reshape(len(steps), -1, 3))
    change = np.asarray(convert(probe), dtype=int) - np.asarray(probe.convert("RGB"), dtype=int)
    return bool(np.abs(change).max() <= _SAME)
