"""Pictures at the size of an encoder, compared with Pillow."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from PIL import Image

from model_store.images.resize import Preprocessing, Resample


@pytest.mark.parametrize(("height", "width"), [(12, 20), (70, 90)])
def test_every_interpolation_is_pillows_whether_it_shrinks_or_enlarges(
    height: int, width: int
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    made = {
        name: Preprocessing(height, width, "stretch", name)(pixels) for name in get_args(Resample)
    }
    for name, picture in made.items():
        wanted = Image.fromarray(pixels).resize((width, height), Image.Resampling[name.upper()])
        np.testing.assert_array_equal(picture, np.asarray(wanted), err_msg=name)
    assert len({picture.tobytes() for picture in made.values()}) == len(made)
