"""What files say of themselves agrees with Pillow, and is found at a bounded cost."""

from __future__ import annotations

import io

import pytest
from PIL import Image, ImageSequence

from model_store.errors import ImageTooLarge
from model_store.images import ImageLimits, decode_image
from model_store.images.containers import count_frames, format_of, webp_canvas
from tests.support.hostile_images import ONE_PIXEL, contrived, gif, tiff
from tests.support.image_files import encoded, picture, seeds


@pytest.mark.parametrize("name", seeds())
def test_files_are_described_as_pillow_describes_them(name: str) -> None:
    data = seeds()[name]
    image = Image.open(io.BytesIO(data))
    assert (
        format_of(data)
        == name.split(maxsplit=1)[0]
        == ("JPEG" if image.format == "MPO" else image.format)
    )
    if image.format in {"GIF", "TIFF"}:
        assert count_frames(data, 1000) == sum(1 for _ in ImageSequence.Iterator(image))
    if image.format == "WEBP":
        assert webp_canvas(data) == image.size


@pytest.mark.parametrize("format_name", ["GIF", "TIFF", "WEBP", "PNG"])
def test_more_frames_than_allowed_are_refused(format_name: str) -> None:
    first, *others = (Image.fromarray(picture(seed=seed)) for seed in range(5))
    data = encoded(first, format_name, save_all=True, append_images=others)
    assert "first" in decode_image(data, ImageLimits(max_frames=5)).warnings[0]
    with pytest.raises(ImageTooLarge, match="more than 4 frames"):
        decode_image(data, ImageLimits(max_frames=4))


def test_counting_stops_when_there_are_too_many() -> None:
    assert count_frames(gif((1, 1), [(0, 0, 1, 1)] * 50), 10) == 11
    assert count_frames(tiff([ONE_PIXEL] * 50), 10) == 11
    assert count_frames(contrived()["TIFF whose pages go in a circle"], 10) == 11


@pytest.mark.parametrize("name", ["GIF animated", "TIFF pages", "TIFF big"])
def test_a_cut_file_is_counted_as_far_as_it_goes(name: str) -> None:
    data = seeds()[name]
    n_frames = [count_frames(data[:n_bytes], 1000) for n_bytes in range(6, len(data))]
    assert set(n_frames) <= set(range(count_frames(data, 1000) + 1))
