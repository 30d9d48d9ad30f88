"""Colours come out as the file's profile means them, and sRGB is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from model_store.images import decode_image
from tests.support.colour_profiles import (
    ADOBE_RGB,
    DISPLAY_P3,
    SRGB,
    grey_profile,
    rgb_profile,
    srgb_curve,
    srgb_from_linear,
)
from tests.support.image_files import encoded, picture

CONVERTED = "converted from the file's profile"
GAMMA_22 = 563 / 256  # as a profile stores 2.2
GAMMA = 461 / 256  # as a profile stores 1.8
IGNORED = "cannot be used and was ignored"


def by_definition(
    pixels: NDArray[np.uint8], matrix: NDArray[np.float64], gamma: float
) -> NDArray[np.float64]:
    """What a display of sRGB must be sent to show these colours."""
    light = (pixels / 255) ** gamma
    return srgb_from_linear(light @ matrix.T @ np.linalg.inv(SRGB).T) * 255


@pytest.mark.parametrize("format_name", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("matrix", [DISPLAY_P3, ADOBE_RGB])
def test_wide_colours_are_converted(format_name: str, matrix: NDArray[np.float64]) -> None:
    pixels = picture()
    options = {"lossless": True} if format_name == "WEBP" else {}
    profile = rgb_profile(matrix, 2.2)
    decoded = decode_image(encoded(pixels, format_name, icc_profile=profile, **options))
    np.testing.assert_allclose(decoded.pixels, by_definition(pixels, matrix, GAMMA_22), atol=2)
    assert np.abs(decoded.pixels.astype(int) - pixels).max() > 20
    assert CONVERTED in decoded.warnings[0]


def test_a_telephone_s_photograph_is_converted() -> None:
    profile = rgb_profile(DISPLAY_P3, 2.2)
    plain = decode_image(encoded(picture(), "JPEG", quality=95))
    marked = decode_image(encoded(picture(), "JPEG", quality=95, icc_profile=profile))
    wanted = by_definition(plain.pixels, DISPLAY_P3, GAMMA_22)
    np.testing.assert_allclose(marked.pixels, wanted, atol=2)


def test_srgb_by_another_name_is_left_alone() -> None:
    table = srgb_curve(np.linspace(0, 1, 1024)).tolist()
    decoded = decode_image(encoded(picture(), icc_profile=rgb_profile(SRGB, table)))
    np.testing.assert_array_equal(decoded.pixels, picture())
    assert decoded.warnings == ()


@pytest.mark.parametrize("mode", ["L", "LA", "1"])
def test_greys_are_converted(mode: str) -> None:
    grey = Image.fromarray(picture()).convert("L").convert(mode)
    values = np.asarray(grey.convert("L"), dtype=float)
    decoded = decode_image(encoded(grey, icc_profile=grey_profile(1.8)))
    wanted = srgb_from_linear((values / 255) ** GAMMA) * 255
    np.testing.assert_allclose(decoded.pixels[..., 1], wanted, atol=2)
    assert (decoded.pixels[..., :1] == decoded.pixels).all()
    assert CONVERTED in decoded.warnings[-1]


def test_sixteen_bit_greys_are_converted() -> None:
    ramp = np.linspace(0, 65_535, 600).astype(np.uint16).reshape(20, 30)
    decoded = decode_image(encoded(ramp, icc_profile=grey_profile(1.8)))
    wanted = srgb_from_linear(((ramp / 257).round() / 255) ** GAMMA) * 255
    np.testing.assert_allclose(decoded.pixels[..., 0], wanted, atol=2)


def test_colours_under_transparency_are_converted() -> None:
    red = Image.new("RGBA", (4, 4), (200, 30, 30, 255))
    decoded = decode_image(encoded(red, icc_profile=rgb_profile(DISPLAY_P3, 2.2)))
    colour = np.array([[[200, 30, 30]]], dtype=np.uint8)
    wanted = by_definition(colour, DISPLAY_P3, GAMMA_22)
    np.testing.assert_allclose(decoded.pixels[:1, :1], wanted, atol=2)
    clear = Image.new("RGBA", (4, 4), (200, 30, 30, 0))
    decoded = decode_image(encoded(clear, icc_profile=rgb_profile(DISPLAY_P3, 2.2)))
    assert (decoded.pixels == 255).all()


@pytest.mark.parametrize(
    "profile",
    [
        b"garbage" * 40,
        rgb_profile(DISPLAY_P3, 2.2)[:200],
        grey_profile(1.8),
        rgb_profile(DISPLAY_P3, 2.2) + b"\0" * (5 * 2**20),
    ],
    ids=["garbage", "truncated", "of greys", "huge"],
)
def test_a_profile_that_cannot_be_used_is_ignored(profile: bytes) -> None:
    decoded = decode_image(encoded(picture(), "TIFF", icc_profile=profile))
    np.testing.assert_array_equal(decoded.pixels, picture())
    assert IGNORED in decoded.warnings[0]


def test_a_broken_profile_of_a_print_is_ignored() -> None:
    cyan = Image.new("CMYK", (5, 5), (255, 0, 0, 0))
    plain = decode_image(encoded(cyan, "TIFF"))
    decoded = decode_image(encoded(cyan, "TIFF", icc_profile=rgb_profile(DISPLAY_P3, 2.2)))
    np.testing.assert_array_equal(decoded.pixels, plain.pixels)
    assert IGNORED in decoded.warnings[-1]
