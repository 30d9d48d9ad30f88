"""Laws of the decoder: a scene in any encoding is the same picture, or is refused by name."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from index_builder.encoders.mobilenet_v2 import encoder_file, read_weights
from model_store.encoder.onnx import OnnxEncoder
from model_store.errors import CorruptImage, UnsupportedImage
from model_store.images import content_of, decode_image
from model_store.images.colours import BROKEN_PROFILE, IGNORED, UNKNOWN
from model_store.images.tiff import scale_of, tiff_layout
from tests.support import scene_encodings
from tests.support.colour_profiles import SRGB, rgb_profile
from tests.support.image_files import encoded, png, png_chunk
from tests.support.scene_encodings import (
    HEIGHT,
    WIDTH,
    code_points,
    gamma_chunk,
    keyed_greys,
    of_type,
    png_of,
    same_grey_scene,
    same_scene,
    scene,
    tiff_of,
    unread_kinds,
    with_exif,
)

MOST_DIFFERENCE = 2.5
"""Mean difference of levels, of 255, that JPEG and rounding explain."""

OF_PALETTES = 4.0
PALETTES = {
    "GIF",
    "PNG palette",
    *(f"TIFF palette{one}" for one in ("", " of 8-bit colours", " of 16 bits")),
}


def without_profile_part() -> bytes:
    """A JPEG that has the first of two parts of a profile."""
    data = encoded(scene(), "JPEG", quality=96)
    part = b"ICC_PROFILE\0\1\2" + rgb_profile(SRGB, 2.2)[:200]
    return data[:2] + b"\xff\xe2" + (len(part) + 2).to_bytes(2, "big") + part + data[2:]


def assert_same(data: bytes, wanted: np.ndarray, most: float = MOST_DIFFERENCE) -> None:
    decoded = decode_image(data)
    assert decoded.pixels.shape == wanted.shape
    assert np.abs(decoded.pixels.astype(int) - wanted).mean() < most


@pytest.mark.parametrize("name", same_scene())
def test_scene_in_any_encoding_is_the_same_picture(name: str) -> None:
    most = OF_PALETTES if name in PALETTES else MOST_DIFFERENCE
    assert_same(same_scene()[name], scene(), most)


@pytest.mark.parametrize("name", same_grey_scene())
def test_grey_scene_in_any_encoding_is_the_same_picture(name: str) -> None:
    grey = np.asarray(Image.fromarray(scene()).convert("L"))
    assert_same(same_grey_scene()[name], np.repeat(grey[..., None], 3, axis=-1))


def test_there_are_as_many_encodings_as_promised() -> None:
    assert len(same_scene()) >= 60
    assert len(set(same_scene().values())) == len(same_scene())


@pytest.mark.parametrize("name", unread_kinds())
def test_sound_file_of_an_unread_kind_is_refused_by_its_name(name: str) -> None:
    data, words = unread_kinds()[name]
    with pytest.raises(UnsupportedImage) as refused:
        decode_image(data)
    assert all(word in str(refused.value) for word in words)
    assert "damaged" not in str(refused.value)


@pytest.mark.parametrize(
    ("pixels", "options"),
    [
        (of_type("u2")[..., 0], {"photometric": "miniswhite"}),
        (of_type("i2")[..., 0], {"photometric": "minisblack"}),
        (
            np.dstack([scene(), scene()[..., 0]]),
            {"planarconfig": "separate", "extrasamples": ["unspecified"]},
        ),
    ],
)
def test_file_saved_as_the_refusal_advises_is_read(
    pixels: np.ndarray, options: dict[str, Any]
) -> None:
    lzw = tiff_of(pixels, compression="zlib", **options)
    deflate, place = lzw, lzw.index(struct.pack("<HHI", 259, 3, 1)) + 8
    lzw = lzw[:place] + struct.pack("<H", 5) + lzw[place + 2 :]
    with pytest.raises(UnsupportedImage, match="uncompressed or with Deflate"):
        decode_image(lzw)
    assert decode_image(deflate)
    assert decode_image(tiff_of(pixels, **options))


@pytest.mark.parametrize("depth", [1, 2, 4, 8, 16])
def test_transparent_grey_of_any_depth_lies_on_white(depth: int) -> None:
    data, wanted = keyed_greys(depth)
    np.testing.assert_allclose(decode_image(data).pixels, wanted, atol=1)


def test_transparent_colour_of_sixteen_bits_lies_on_white() -> None:
    pixels = of_type("u2").copy()
    pixels[:20] = (70, 30_000, 65_535)
    key = png_chunk(b"tRNS", b"".join(int(one).to_bytes(2, "big") for one in pixels[0, 0]))
    decoded = decode_image(png_of(pixels, key))
    assert (decoded.pixels[:20] == 255).all()
    assert np.abs(decoded.pixels[20:].astype(int) - scene()[20:]).mean() < 1
    assert "white" in decoded.warnings[0]


@pytest.mark.parametrize("interlaced", [False, True])
def test_transparent_colour_of_sixteen_bits_is_compared_in_all_bits(*, interlaced: bool) -> None:
    pixels = of_type("u2").copy()
    pixels[:20] = (65_535, 0, 0)
    pixels[20:30] = (65_534, 0, 0)
    key = png_chunk(b"tRNS", struct.pack(">3H", 65_534, 0, 0))
    if interlaced:  # passes of Adam7: first row, first column, step down, step right
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4)]
        passes += [(2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
        parts = [pixels[top::down, left::right] for top, left, down, right in passes]
        rows = b"".join(b"\0" + row.astype(">u2").tobytes() for part in parts for row in part)
        data = png(WIDTH, HEIGHT, 16, 2, rows, key)
        header = data[12:28] + b"\1"
        data = data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]
    else:
        data = png_of(pixels, key)
    decoded = decode_image(data)
    assert (decoded.pixels[:20] == (255, 0, 0)).all()
    assert (decoded.pixels[20:30] == 255).all()
    assert "white" in decoded.warnings[0]
    assert decode_image(data.replace(key, b"")).warnings == ()


def with_opaque_alpha() -> dict[str, bytes]:
    """Files that declare alpha or a transparent colour that no pixel uses."""
    rgb = Image.fromarray(scene())
    palette = rgb.quantize(64)
    opaque = rgb.convert("RGBA")
    unused = struct.pack(">3H", 1, 2, 3)
    return {
        "PNG RGBA": encoded(opaque),
        "PNG LA": encoded(rgb.convert("LA")),
        "PNG palette, all opaque": encoded(palette, transparency=bytes([255] * 64)),
        "PNG palette, entry not used": encoded(palette, transparency=bytes([255] * 70 + [0])),
        "PNG colour not used": png_of(scene(), png_chunk(b"tRNS", unused)),
        "PNG 16-bit colour not used": png_of(of_type("u2"), png_chunk(b"tRNS", unused)),
        "PNG 16-bit grey not used": png_of(
            of_type("u2")[..., 0], png_chunk(b"tRNS", struct.pack(">H", 1))
        ),
        "PNG 16 bits, alpha": png_of(
            np.dstack([of_type("u2"), np.full((HEIGHT, WIDTH), 65_535, np.uint16)])
        ),
        "TIFF RGBA": encoded(opaque, "TIFF"),
        "TIFF LA": encoded(rgb.convert("LA"), "TIFF"),
        "TIFF RGBA, planes": tiff_of(
            np.asarray(opaque), planarconfig="separate", extrasamples=["unassalpha"]
        ),
        "WebP RGBA": encoded(opaque, "WEBP", lossless=True, exact=True),
    }


@pytest.mark.parametrize("name", with_opaque_alpha())
def test_picture_without_a_transparent_pixel_loses_nothing(name: str) -> None:
    decoded = decode_image(with_opaque_alpha()[name])
    assert not [one for one in decoded.warnings if "Transparent" in one]


@pytest.mark.parametrize(
    ("dtype", "low", "high", "at", "wanted"),
    [
        ("u2", 0, 65_535, 65_535, 255),
        ("u2", 0, 4_096, 4_096, 16),  # dark, and a sixteenth of the range
        ("u2", 0, 1_023, 1_023, 255),  # ten
        ("u2", 0, 4_095, 4_095, 255),  # of a camera with twelve bits
        ("u2", 0, 255, 255, 255),
        ("i4", 0, 255, 128, 128),
        ("i4", 0, 2**31 - 1, 2**31 - 1, 255),
        ("u4", 0, 70_000, 70_000, 255),  # no usual depth: its own extremes
        ("i2", -100, 300, -100, 0),
        ("i2", -100, 300, 300, 255),
        ("i2", 0, 32_767, 32_767, 255),
        ("f4", 0, 1, 0.5, 128),
        ("f4", 0, 1.9, 1, 255),  # highlights above white
        ("f4", 0, 255, 255, 255),
        ("f4", 0, 0.01, 0.01, 255),
        ("f4", 0.25, 0.25, 0.25, 64),
        ("f4", 0, 0, 0, 0),
    ],
)
def test_scale_of_samples_by_type_and_extremes(
    dtype: str, low: float, high: float, at: float, wanted: int
) -> None:
    scale = scale_of(np.dtype(dtype), low, high)
    assert int(scale(np.array([at]))[0]) == wanted


def test_sixteen_bit_png_of_twelve_bits_warns_that_it_is_dark() -> None:
    dark = decode_image(png_of((scene() / 255 * 4095).round().astype(np.uint16)))
    assert any("nearly black" in one for one in dark.losses)
    half = decode_image(png_of((scene() / 255 * 8191).round().astype(np.uint16)))
    assert not half.losses


def test_truevision_is_no_cursor() -> None:
    header = b"\0\0\2" + bytes(9) + b"\x10\0\x10\0\x18\0"
    assert content_of(header + bytes(range(256)) * 3) is None
    cursor = content_of(b"\0\0\2\0\1\0" + bytes(range(64)))
    assert cursor is not None
    assert "cursor" in cursor.name


def test_samples_that_are_no_numbers_do_not_spread() -> None:
    values = of_type("f4").copy()
    values[0, 0], values[0, 1], values[1, 0] = np.nan, np.inf, -np.inf
    decoded = decode_image(tiff_of(values))
    assert np.abs(decoded.pixels[2:].astype(int) - scene()[2:]).max() <= 1


def test_float_without_a_finite_sample_is_black() -> None:
    assert not decode_image(tiff_of(np.full((9, 9, 3), np.nan, np.float32))).pixels.any()


@pytest.mark.parametrize("kind", ["u2", "f4", "i4"])
@pytest.mark.parametrize("options", [{}, {"compression": "zlib"}, {"tile": (16, 16)}])
def test_tiff_without_a_part_is_refused_as_damaged(kind: str, options: dict[str, Any]) -> None:
    data = tiff_of(of_type(kind), planarconfig="separate", **options)
    for kept in (len(data) // 2, len(data) - 1):
        with pytest.raises((CorruptImage, UnsupportedImage), match=r"damaged|not read"):
            decode_image(data[:kept])


def test_jpeg_that_lacks_pixels_is_refused() -> None:
    for progressive in (False, True):
        data = encoded(scene(), "JPEG", quality=96, progressive=progressive)
        for kept in (len(data) * 19 // 20, len(data) * 2 // 3):
            with pytest.raises(CorruptImage):
                decode_image(data[:kept])


def test_jpeg_without_its_end_is_the_same_when_reduced() -> None:
    large = np.asarray(Image.fromarray(scene()).resize((960, 720)))
    data = encoded(large, "JPEG", quality=90)
    whole, cut = decode_image(data, smallest_side=100), decode_image(data[:-2], smallest_side=100)
    np.testing.assert_array_equal(cut.pixels, whole.pixels)
    assert (cut.width, cut.height) == (960, 720)
    assert "end of the file is missing" in cut.warnings[0]


@pytest.mark.parametrize(
    ("data", "warning"),
    [
        (png_of(scene(), gamma_chunk(0.0)), IGNORED),
        (png_of(scene(), gamma_chunk(30.0)), IGNORED),
        (png_of(scene(), gamma_chunk(1 / 2.2) + png_chunk(b"cHRM", bytes(32))), IGNORED),
        (png_of(scene(), code_points(77, 16)), IGNORED),
        (with_exif("JPEG", scene(), {0xA001: 65535}, quality=96), UNKNOWN),
        (tiff_of(scene(), extratags=[(319, 5, 6, (0, 1) * 6, True)]), IGNORED),
        (png_of(scene(), png_chunk(b"iCCP", b"x\0\0garbage")), BROKEN_PROFILE),
        (without_profile_part(), BROKEN_PROFILE),
    ],
)
def test_statement_that_cannot_be_used_is_said(data: bytes, warning: str) -> None:
    assert warning in decode_image(data).warnings
    assert_same(data, scene())


def test_profile_is_stronger_than_exif_and_gamma() -> None:
    profile = rgb_profile(SRGB, 2.2)
    for data in (
        with_exif("JPEG", scene(), {0xA001: 65535, 0xA005: {1: "R03\0"}}, icc_profile=profile),
        with_exif("JPEG", scene(), {0xA001: 1, 0xA005: {1: "R03\0"}}),
    ):
        assert np.abs(decode_image(data).pixels.astype(int) - scene()).mean() < 5


def test_tiff_layout_of_cut_files_is_none_or_read() -> None:
    data = tiff_of(of_type("u2"))
    for kept in range(8, 300):
        layout = tiff_layout(data[:kept])
        assert layout is None or layout.n_samples <= 3
    with pytest.raises(CorruptImage):
        decode_image(data[:9])


def test_pages_of_a_deep_tiff_are_counted() -> None:
    buffer = io.BytesIO(tiff_of(np.stack([of_type("f4")] * 3)))
    assert "several pages" in decode_image(buffer.getvalue()).warnings[0]


@pytest.mark.slow
def test_scene_in_any_encoding_has_the_same_embedding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A small photograph, by the encoder in the box: within 0.02 of cosine."""
    photograph = load_sample_images().images[0][:240, :360]
    monkeypatch.setattr(scene_encodings, "scene", lambda: photograph)
    path = tmp_path / "encoder.onnx"
    path.write_bytes(encoder_file(read_weights()))
    encoder = OnnxEncoder(path, "cpu", threads=1)
    preprocessing = encoder.metadata.preprocessing

    def embedding(data: bytes) -> np.ndarray:
        pixels = decode_image(data, None, preprocessing.smallest_side).pixels
        mean = encoder.encode(preprocessing(pixels)[None]).mean[0]
        return np.asarray(mean / np.linalg.norm(mean))

    grey = np.asarray(Image.fromarray(photograph).convert("L"))
    kinds = (same_scene.__wrapped__, photograph), (same_grey_scene.__wrapped__, grey)
    for made, picture in kinds:
        wanted = embedding(encoded(picture))
        distances = {name: 1 - embedding(data) @ wanted for name, data in made().items()}
        assert max(distances.values()) < 0.02, max(distances, key=lambda name: distances[name])
