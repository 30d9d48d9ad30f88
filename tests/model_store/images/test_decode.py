from __future__ import annotations

import base64
import io
import re
import tracemalloc
import warnings
import zlib
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from model_store.errors import CorruptImage, EmptyImage, ImageError, ImageTooLarge, UnsupportedImage
from model_store.images import FORMATS, ImageLimits, Preprocessing, decode_image, encode_thumbnail
from tests.support.hostile_images import contrived
from tests.support.image_files import encoded, picture, seeds

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.mark.parametrize("format_name", ["PNG", "BMP", "TIFF"])
def test_lossless_formats_come_back_exactly(format_name: str) -> None:
    decoded = decode_image(encoded(Image.fromarray(PIXELS), format_name))
    np.testing.assert_array_equal(decoded.pixels, PIXELS)
    assert (decoded.format, decoded.width, decoded.height) == (format_name, 30, 20)
    assert decoded.warnings == ()


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_accepted_format_is_decoded(format_name: str) -> None:
    grey = Image.fromarray(np.full((9, 7, 3), 128, dtype=np.uint8))
    decoded = decode_image(encoded(grey, format_name))
    assert decoded.pixels.shape == (9, 7, 3)
    assert np.abs(decoded.pixels.astype(int) - 128).max() <= 2


def test_the_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    decoded = decode_image(encoded(Image.fromarray(PIXELS), "PNG", exif=exif))
    np.testing.assert_array_equal(decoded.pixels, np.rot90(PIXELS, -1))
    assert (decoded.width, decoded.height) == (20, 30)
    assert "orientation" in decoded.warnings[0]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_orientation_is_set_upright(format_name: str, orientation: int) -> None:
    data = seeds()[f"{format_name} turned {orientation}"]
    decoded = decode_image(data)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    np.testing.assert_array_equal(decoded.pixels, np.asarray(upright.convert("RGB")))
    assert any("orientation" in warning for warning in decoded.warnings) == (orientation > 1)


@pytest.mark.slow
def test_large_images_are_converted_strip_by_strip_as_if_whole() -> None:
    wide = Image.fromarray(picture(1500, 1100))
    wide.putalpha(wide.convert("L"))
    white = Image.new("RGBA", wide.size, "white")
    whole = Image.alpha_composite(white, wide).convert("RGB")
    np.testing.assert_array_equal(decode_image(encoded(wide)).pixels, np.asarray(whole))
    values = np.asarray(wide.convert("L"), dtype=np.float32)
    decoded = decode_image(encoded(Image.fromarray(values), "TIFF"))
    np.testing.assert_allclose(decoded.pixels[..., 0], values, atol=0.51)


def test_a_photograph_with_further_pictures_in_it_is_a_jpeg() -> None:
    decoded = decode_image(seeds()["JPEG of several pictures"])
    assert decoded.format == "JPEG"
    assert "first" in decoded.warnings[0]


def test_broken_metadata_are_no_reason_to_refuse() -> None:
    decoded = decode_image(contrived()["PNG with EXIF of zeros"])
    assert (decoded.width, decoded.height) == (30, 30)


def test_sixteen_bits_are_rescaled_not_clipped() -> None:
    ramp = np.linspace(0, 65_535, 600).astype(np.uint16).reshape(20, 30)
    decoded = decode_image(encoded(Image.fromarray(ramp)))
    assert len(np.unique(decoded.pixels)) > 200
    np.testing.assert_allclose(decoded.pixels[..., 0], ramp / 257, atol=1)
    assert "eight bits" in decoded.warnings[0]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_lies_on_white(mode: str) -> None:
    clear = Image.new(mode, (4, 3), 0)
    decoded = decode_image(encoded(clear))
    assert (decoded.pixels == 255).all()
    assert "white" in decoded.warnings[0]


def test_a_transparent_palette_lies_on_white() -> None:
    image = Image.new("P", (4, 4))
    image.putpalette([255, 0, 0] + [0] * 765)
    decoded = decode_image(encoded(image, "PNG", transparency=0))
    assert (decoded.pixels == 255).all()


def test_cmyk_becomes_rgb() -> None:
    cyan = Image.new("CMYK", (5, 5), (255, 0, 0, 0))
    decoded = decode_image(encoded(cyan, "JPEG"))
    red, green, blue = decoded.pixels[2, 2]
    assert red < 60
    assert min(green, blue) > 150
    assert "print colours" in decoded.warnings[0]


def test_the_first_frame_of_an_animation_is_used() -> None:
    frames = [Image.new("RGB", (6, 6), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    decoded = decode_image(data)
    assert (decoded.pixels[0, 0] == (255, 0, 0)).all()
    assert "first" in decoded.warnings[0]


def test_nothing_is_refused_as_empty() -> None:
    with pytest.raises(EmptyImage, match=r"^The file is empty \(0 bytes\)\. Use one image file\.$"):
        decode_image(b"")


@pytest.mark.parametrize(
    "data", [b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.4", b"\x00" * 100]
)
def test_what_is_not_an_accepted_image_is_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedImage, match="Accepted: JPEG, PNG"):
        decode_image(data)


def test_a_format_that_pillow_knows_but_we_do_not_accept_is_refused() -> None:
    with pytest.raises(UnsupportedImage):
        decode_image(encoded(Image.fromarray(PIXELS), "PPM"))


@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP", "TIFF", "BMP"])
def test_a_truncated_file_is_refused(format_name: str) -> None:
    data = encoded(Image.fromarray(np.repeat(np.repeat(PIXELS, 8, 0), 8, 1)), format_name)
    with pytest.raises(ImageError):
        decode_image(data[: len(data) * 3 // 5])
    if format_name in {"JPEG", "PNG"}:
        with pytest.raises(CorruptImage, match="truncated"):
            decode_image(data[: len(data) * 3 // 5])


SCENE = Image.fromarray(picture(160, 120))
SPLIT = [{}, {"optimize": True}, {"progressive": True}, {"restart_marker_blocks": 4}]
SPLIT += [{"progressive": True, "restart_marker_rows": 1}, {"quality": 100}]
MARKER = re.compile(rb"\xff[^\x00\xff]")


@pytest.mark.parametrize("smallest_side", [None, 20])
@pytest.mark.parametrize("options", SPLIT, ids=str)
def test_jpeg_cut_at_a_marker_or_elsewhere_is_refused(
    options: dict[str, Any], smallest_side: int | None
) -> None:
    data = encoded(SCENE, "JPEG", **options)
    start = data.index(b"\xff\xda")
    markers = [found.start() for found in MARKER.finditer(data, start + 2, len(data) - 2)]
    places = {*markers[:80], *(place + 2 for place in markers[:80])}
    for kept in (places | {*range(start, len(data) - 20, len(data) // 40)}) - {len(data) - 2}:
        with pytest.raises(CorruptImage):
            decode_image(data[:kept], smallest_side=smallest_side)


@pytest.mark.parametrize("byte", [b"\0", b"\xaa", b"\xff"])
@pytest.mark.parametrize("options", SPLIT, ids=str)
def test_jpeg_whose_lost_part_was_filled_is_refused(options: dict[str, Any], byte: bytes) -> None:
    data = encoded(SCENE, "JPEG", **options)
    for kept in (len(data) * 3 // 10, len(data) * 6 // 10, len(data) * 9 // 10):
        with pytest.raises(ImageError):
            decode_image(data[:kept] + byte * (len(data) - kept))


@pytest.mark.parametrize("image", [SCENE, Image.new("RGB", (64, 64), "white")])
@pytest.mark.parametrize("options", SPLIT, ids=str)
def test_jpeg_that_lacks_only_its_end_is_read(image: Image.Image, options: dict[str, Any]) -> None:
    data = encoded(image, "JPEG", **options)
    padded = [data[:-2] + bytes(3000)] if image is SCENE else []  # one colour may be zeros itself
    for cut in (data[:-2], data[:-1], *padded):
        decoded = decode_image(cut)
        np.testing.assert_array_equal(decoded.pixels, decode_image(data).pixels)
        assert decoded.warnings == ("The end of the file is missing; the picture is whole.",)
    assert decode_image(data + bytes(3000)).warnings == ()


def test_jpeg_that_lacks_only_its_end_takes_little_memory() -> None:
    data = encoded(SCENE.resize((1600, 1200)), "JPEG")[:-2]
    tracemalloc.start()
    try:
        decode_image(data, smallest_side=200)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1600 * 1200  # a copy of the pixels has 3 bytes for each


ARITHMETIC = [
    (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQF"
        "dBRkxOUlNSMj5aYVpQYEpRUk//yQALCAAQABgBAREA/8wABgAQEAX/2gAIAQEAAD8A/wCVuq/CU9mE4vTIDj8mVvVVKP/Z"
    ),
    (
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNywtQF"
        "dBRkxOUlNSMj5aYVpQYEpRUk//ygALCAAQABgBAREA/8wABAAQ/9oACAEBAAAAAf8AK75xSSzu0P/MAAQQBf/aAAgBAQAB"
        "BQIUR46A/8wABBAF/9oACAEBAAY/AsD/zAAEEAX/2gAIAQEAAT8hIP/aAAgBAQAAABDM/8wABBAF/9oACAEBAAE/EFC0jf"
        "/Z"
    ),
]
"""A ramp of 24 × 16 greys as `cjpeg -arithmetic` writes it, sequential and progressive."""


@pytest.mark.parametrize("text", ARITHMETIC, ids=["sequential", "progressive"])
def test_jpeg_of_arithmetic_coding_is_read_at_any_size_and_refused_if_cut(text: str) -> None:
    data = base64.b64decode(text)
    ramp = np.arange(0, 240, 10)
    assert np.abs(decode_image(data).pixels[..., 0].astype(int) - ramp).max() < 12
    lengths = (40_000, 2**16 - len(data) + 6 - 40_004)  # the last scan is at 64 KiB
    comments = b"".join(b"\xff\xfe" + n.to_bytes(2, "big") + bytes(n - 2) for n in lengths)
    np.testing.assert_array_equal(
        decode_image(data[:2] + comments + data[2:]).pixels, decode_image(data).pixels
    )
    for kept in range(data.index(b"\xff\xda") + 10, len(data) - 2):
        with pytest.raises(CorruptImage):
            decode_image(data[:kept])


def test_too_many_bytes_are_refused() -> None:
    with pytest.raises(ImageTooLarge, match="at most 10 are accepted"):
        decode_image(b"0123456789a", ImageLimits(max_bytes=10))


def test_too_many_pixels_are_refused_before_they_are_decoded() -> None:
    with pytest.raises(ImageTooLarge, match="30 × 20 = 600 pixels"):
        decode_image(encoded(Image.fromarray(PIXELS)), ImageLimits(max_pixels=599))
    assert decode_image(encoded(Image.fromarray(PIXELS)), ImageLimits(max_pixels=600))


def test_a_decompression_bomb_is_refused_by_its_header() -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + checksum

    side = (60_000).to_bytes(4, "big")
    header = chunk(b"IHDR", side + side + bytes([8, 2, 0, 0, 0]))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\x00" * 1000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ImageTooLarge, match="40,000,000"):
            decode_image(bomb)


SEEDS = [
    encoded(Image.fromarray(PIXELS), "PNG"),
    encoded(Image.fromarray(PIXELS), "JPEG"),
    encoded(Image.fromarray(PIXELS), "WEBP"),
    encoded(Image.fromarray(PIXELS), "GIF"),
    encoded(Image.fromarray(PIXELS), "TIFF"),
]


@pytest.mark.slow
@settings(max_examples=300)
@given(
    seed=st.sampled_from(SEEDS),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=6),
    keep=st.floats(0.05, 1),
)
def test_damage_gives_an_image_or_an_error_of_the_family(
    seed: bytes, flips: list[tuple[float, int]], keep: float
) -> None:
    data = bytearray(seed[: max(1, int(len(seed) * keep))])
    for place, value in flips:
        data[int(place * len(data))] = value
    try:
        decoded = decode_image(bytes(data), ImageLimits(max_pixels=1_000_000))
    except ImageError:
        return
    assert decoded.pixels.shape == (decoded.height, decoded.width, 3)
    assert decoded.pixels.dtype == np.uint8


def test_stretching_changes_the_aspect_ratio_and_covering_crops() -> None:
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 255
    stretched = Preprocessing(10, 10, "stretch")(wide)
    covered = Preprocessing(10, 10, "cover")(wide)
    assert (covered == 255).all()
    assert stretched[:, 0].max() == 0


def test_an_image_of_the_right_size_is_not_touched() -> None:
    np.testing.assert_array_equal(Preprocessing(20, 30)(PIXELS), PIXELS)


def test_small_thumbnails_are_lossless_and_large_ones_small() -> None:
    data, media_type = encode_thumbnail(PIXELS)
    np.testing.assert_array_equal(decode_image(data).pixels, PIXELS)
    assert media_type == "image/png"
    large = np.repeat(np.repeat(PIXELS, 20, 0), 20, 1)
    data, media_type = encode_thumbnail(large)
    decoded = decode_image(data)
    assert (media_type, max(decoded.width, decoded.height)) == ("image/jpeg", 160)


@cache
def photograph(width: int = 1200, height: int = 900) -> np.ndarray:
    """A picture with structure at every scale, as photographs have."""
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (40 + 9 * k) + columns / (70 - 5 * k)) for k in range(3)]
    fine = 20 * np.sin(rows / 9) * np.sin(columns / 11)
    return np.asarray((127 + 90 * np.stack(waves, -1) + fine[..., None]).clip(0, 255), np.uint8)


class TestReducedDecoding:
    @pytest.mark.parametrize(
        ("smallest_side", "reduced"),
        [(None, 1), (901, 1), (451, 1), (450, 2), (226, 2), (225, 4), (113, 4), (112, 8), (1, 8)],
    )
    def test_no_side_falls_below_the_smallest(
        self, smallest_side: int | None, reduced: int
    ) -> None:
        decoded = decode_image(encoded(photograph(), "JPEG"), smallest_side=smallest_side)
        shape = (-(-900 // reduced), -(-1200 // reduced), 3)
        assert decoded.pixels.shape == shape
        assert (decoded.width, decoded.height) == (1200, 900)
        assert decoded.warnings == ()

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_every_orientation_is_set_upright(self, orientation: int) -> None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = encoded(photograph(), "JPEG", exif=exif)
        whole, decoded = decode_image(data), decode_image(data, smallest_side=200)
        assert (decoded.width, decoded.height) == (whole.width, whole.height)
        assert decoded.pixels.shape[0] * 4 == whole.pixels.shape[0]
        assert decoded.warnings == whole.warnings
        assert_similar(decoded.pixels, whole.pixels)

    @pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
    @pytest.mark.parametrize("progressive", [False, True])
    def test_colours_stay_as_they_are(self, mode: str, *, progressive: bool) -> None:
        image = Image.fromarray(photograph()).convert(mode)
        data = encoded(image, "JPEG", progressive=progressive, quality=92)
        whole, decoded = decode_image(data), decode_image(data, smallest_side=200)
        assert decoded.pixels.shape == (225, 300, 3)
        assert decoded.warnings == whole.warnings
        assert_similar(decoded.pixels, whole.pixels)

    def test_what_a_phone_adds_to_its_picture_does_not_matter(self) -> None:
        both = io.BytesIO()
        first, second = Image.fromarray(photograph()), Image.fromarray(photograph(600, 450))
        first.save(both, "MPO", save_all=True, append_images=[second])
        decoded = decode_image(both.getvalue(), smallest_side=200)
        assert decoded.pixels.shape == (225, 300, 3)
        assert (decoded.format, decoded.width, decoded.height) == ("JPEG", 1200, 900)
        assert "only the first" in decoded.warnings[0]

    @pytest.mark.parametrize("format_name", ["PNG", "WEBP", "GIF", "BMP", "TIFF"])
    def test_other_formats_are_decoded_in_full(self, format_name: str) -> None:
        data = encoded(picture(400, 300), format_name)
        whole, decoded = decode_image(data), decode_image(data, smallest_side=10)
        np.testing.assert_array_equal(decoded.pixels, whole.pixels)

    def test_a_large_picture_is_still_refused(self) -> None:
        limits = ImageLimits(max_pixels=1_000_000)
        with pytest.raises(ImageTooLarge, match="1200 × 900"):
            decode_image(encoded(photograph(), "JPEG"), limits, smallest_side=200)

    def test_a_truncated_picture_is_still_refused(self) -> None:
        data = encoded(photograph(), "JPEG")
        with pytest.raises(CorruptImage):
            decode_image(data[: len(data) // 2], smallest_side=100)

    @pytest.mark.slow
    def test_the_encoder_s_input_is_nearly_the_same(self) -> None:
        data = encoded(photograph(3000, 2250), "JPEG", quality=90)
        preprocessing = Preprocessing(224, 224, decoding="reduced")
        smallest = preprocessing.smallest_side
        assert smallest == 448
        decoded = decode_image(data, smallest_side=smallest)
        assert decoded.pixels.shape == (563, 750, 3)
        difference = preprocessing(decoded.pixels).astype(int) - preprocessing(
            decode_image(data).pixels
        )
        assert np.abs(difference).mean() < 2

    def test_a_small_encoder_leaves_enough_for_a_thumbnail(self) -> None:
        assert Preprocessing(28, 28, decoding="reduced").smallest_side == 320
        assert Preprocessing(28, 28).smallest_side is None


def assert_similar(reduced: np.ndarray, whole: np.ndarray) -> None:
    """Compare with the whole picture, averaged to the same size."""
    size = reduced.shape[1], reduced.shape[0]
    averaged = np.asarray(Image.fromarray(whole).resize(size, Image.Resampling.BOX))
    assert np.abs(averaged.astype(int) - reduced).mean() < 2
