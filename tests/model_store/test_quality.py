"""Reasons against a query, on real photographs that were spoilt one way at a time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from sklearn.datasets import load_sample_images

from model_store.images.quality import MEASURES, ordinary_limits, quality_hints, quality_measures

Pixels = NDArray[np.uint8]
PHOTOGRAPHS: list[Pixels] = load_sample_images().images


def codes(pixels: Pixels) -> list[str]:
    return [hint.code for hint in quality_hints(quality_measures(pixels))]


def resized(pixels: Pixels, width: int, height: int) -> Pixels:
    return np.asarray(Image.fromarray(pixels).resize((width, height)))


def blurred(pixels: Pixels) -> Pixels:
    return np.asarray(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(12)))


@pytest.mark.parametrize("pixels", PHOTOGRAPHS)
def test_a_good_photograph_gets_no_hint(pixels: Pixels) -> None:
    assert codes(pixels) == []
    assert codes(pixels[:, ::-1]) == []
    assert codes(resized(pixels, 200, 150)) == []


@pytest.mark.parametrize("pixels", PHOTOGRAPHS)
def test_each_way_to_spoil_it_is_named(pixels: Pixels) -> None:
    assert codes(blurred(pixels)) == ["blurred"]
    assert "too_dark" in codes((pixels * 0.15).astype(np.uint8))
    assert "flat" in codes((pixels * 0.05 + 120).astype(np.uint8))
    assert codes(resized(pixels, 60, 40)) == ["too_small"]
    assert "extreme_aspect" in codes(pixels[100:200, :600])


def test_one_colour_is_flat_and_not_sharp() -> None:
    measures = quality_measures(np.full((80, 80, 3), 130, dtype=np.uint8))
    assert dict(zip(MEASURES, measures, strict=True)) == {
        "short_side": 80,
        "brightness": 130,
        "contrast": 0,
        "sharpness": 0,
        "aspect": 1,
    }


def test_what_is_usual_here_is_no_reason() -> None:
    generator = np.random.default_rng(0)
    icons = generator.integers(0, 60, (300, 16, 16, 3), dtype=np.uint8)
    measures = np.stack([quality_measures(icon) for icon in icons])
    assert {"too_small", "too_dark"} <= set(codes(icons[0]))
    ordinary = ordinary_limits(measures)
    hinted = [bool(quality_hints(row, ordinary)) for row in measures]
    assert np.mean(hinted) <= 0.03
    night = quality_measures(icons[0] // 8)
    assert [hint.code for hint in quality_hints(night, ordinary)] == ["too_dark", "flat"]


def test_a_hint_says_what_was_measured_and_what_to_do() -> None:
    (hint,) = quality_hints(quality_measures(resized(PHOTOGRAPHS[0], 60, 40)))
    assert (hint.code, hint.measure, hint.value) == ("too_small", "short_side", 40)
    assert hint.advice.endswith(".")
