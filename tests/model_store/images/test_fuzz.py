"""Hundreds of damaged files of every kind: an image, or an error of the family."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from model_store.errors import CorruptImage, ImageError
from model_store.images import ImageLimits, Preprocessing, decode_image
from tests.support.hostile_images import cases, contrived
from tests.support.image_files import seeds

LIMITS = ImageLimits(max_pixels=1_000_000)


@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_file_gives_an_image_or_an_error_of_the_family(seed: int) -> None:
    preprocessing = Preprocessing(24, 20, "cover")
    n_images = 0
    begin = len(contrived()) + 19 * len(seeds())
    for name, data in islice(cases(begin + 400, seed), begin, None):
        try:
            decoded = decode_image(data, LIMITS)
        except ImageError:
            continue
        n_images += 1
        assert decoded.pixels.shape == (decoded.height, decoded.width, 3), name
        assert decoded.pixels.dtype == np.uint8, name
        assert preprocessing(decoded.pixels).shape == (24, 20, 3), name
    assert 50 < n_images < 350  # mutations that spare all files, or none, test nothing


@pytest.mark.parametrize("name", seeds())
def test_a_file_that_was_cut_gives_all_its_pixels_or_none(name: str) -> None:
    data = seeds()[name]
    whole = decode_image(data).pixels
    n_refused = 0
    for n_bytes in {*(len(data) * part // 20 for part in range(1, 20)), *range(-9, 0)}:
        try:
            decoded = decode_image(data[:n_bytes])
        except CorruptImage:
            n_refused += 1
            continue
        np.testing.assert_array_equal(decoded.pixels, whole)
    assert n_refused > 0
