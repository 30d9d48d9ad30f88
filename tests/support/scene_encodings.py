"""One scene in many encodings, of which a decoder returns the same picture."""

from __future__ import annotations

import base64
import functools
import io
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from tests.support.colour_profiles import (
    ADOBE_RGB,
    DISPLAY_P3,
    SRGB,
    rgb_profile,
    srgb_curve,
    srgb_from_linear,
)
from tests.support.image_files import encoded, png, png_chunk

WIDTH, HEIGHT = 96, 72
BT_2020 = np.array(
    [[0.67348, 0.16566, 0.12505], [0.27904, 0.67534, 0.04562], [-0.00193, 0.02998, 0.79686]]
)
"""Columns: XYZ of red, green and blue, adapted to D50."""

Pixels = NDArray[Any]


@functools.cache
def scene(seed: int = 5) -> NDArray[np.uint8]:
    """Smooth fields of moderate colours with a few shapes, (H, W, 3)."""
    rng = np.random.default_rng(seed)
    small = rng.integers(40, 216, (4, 5, 3), dtype=np.uint8)
    smooth = Image.fromarray(small).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    pixels = np.asarray(smooth).copy()
    for _ in range(5):
        x, y = rng.integers(0, WIDTH - 20), rng.integers(0, HEIGHT - 20)
        width, height = rng.integers(8, 20, 2)
        pixels[y : y + height, x : x + width] = rng.integers(30, 226, 3)
    return pixels


def light() -> NDArray[np.float64]:
    """Linear light of the scene, white is 1."""
    linear: NDArray[np.float64] = srgb_curve(scene() / 255)
    return linear


def in_space(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear light of the scene with other primaries."""
    found: NDArray[np.float64] = light() @ SRGB.T @ np.linalg.inv(matrix).T
    return found.clip(0, 1)


def eight(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.asarray((values.clip(0, 1) * 255).round(), dtype=np.uint8)


def sixteen(values: NDArray[np.float64]) -> NDArray[np.uint16]:
    return np.asarray((values.clip(0, 1) * 65_535).round(), dtype=np.uint16)


def png_of(pixels: Pixels, chunks: bytes = b"", colour: int | None = None) -> bytes:
    """A PNG of 8 or 16 bits, of grey, grey and alpha, RGB or RGBA."""
    depth = 8 * pixels.dtype.itemsize
    samples = 1 if pixels.ndim == 2 else pixels.shape[2]
    rows = pixels.astype(f">u{pixels.dtype.itemsize}").reshape(len(pixels), -1)
    content = b"".join(b"\0" + row.tobytes() for row in rows)
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[samples] if colour is None else colour
    return png(pixels.shape[1], pixels.shape[0], depth, kind, content, chunks)


def gamma_chunk(gamma: float) -> bytes:
    return png_chunk(b"gAMA", struct.pack(">I", round(gamma * 100_000)))


def primaries_chunk(*chromaticities: float) -> bytes:
    """White, red, green and blue: x and y of each."""
    return png_chunk(b"cHRM", struct.pack(">8I", *(round(one * 100_000) for one in chromaticities)))


P3_CHUNK = primaries_chunk(0.3127, 0.3290, 0.680, 0.320, 0.265, 0.690, 0.150, 0.060)


def code_points(primaries: int, transfer: int, full_range: int = 1) -> bytes:
    return png_chunk(b"cICP", bytes([primaries, transfer, 0, full_range]))


def pq(nits: NDArray[np.float64]) -> NDArray[np.float64]:
    """SMPTE ST 2084, as an encoder has it."""
    m1, m2, c1, c2, c3 = 0.1593017578125, 78.84375, 0.8359375, 18.8515625, 18.6875
    powers = (nits / 10_000) ** m1
    return np.asarray(((c1 + c2 * powers) / (1 + c3 * powers)) ** m2)


def hlg(scene_light: NDArray[np.float64]) -> NDArray[np.float64]:
    """ITU-R BT.2100, as an encoder has it."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    high = a * np.log(np.maximum(12 * scene_light - b, 1e-9)) + c
    return np.where(scene_light <= 1 / 12, np.sqrt(3 * scene_light), high)


def tiff_of(pixels: Pixels, photometric: str = "rgb", **options: Any) -> bytes:
    """A TIFF as `tifffile` writes it; planes first where ``planarconfig`` is separate."""
    buffer = io.BytesIO()
    if options.get("planarconfig") == "separate":
        pixels = np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    tifffile.imwrite(buffer, pixels, photometric=photometric, metadata=None, **options)
    return buffer.getvalue()


def without_tag(data: bytes, tag: int) -> bytes:
    """A TIFF with a private tag in the place of one of its tags."""
    return data.replace(struct.pack("<HHI", tag, 3, 1), struct.pack("<HHI", 65_000, 3, 1))


def tiff_after_a_preview(pixels: NDArray[np.uint8]) -> bytes:
    """A TIFF whose first page is a small preview, as its kind says."""
    buffer = io.BytesIO()
    with tifffile.TiffWriter(buffer) as file:
        file.write(pixels[::4, ::4], photometric="rgb", subfiletype=1, metadata=None)
        file.write(pixels, photometric="rgb", metadata=None)
    return buffer.getvalue()


def palette_tiff(
    image: Image.Image, step: int, dtype: type[np.unsignedinteger] = np.uint8
) -> bytes:
    """A TIFF with a palette; its colours have 16 bits where ``step`` is 257."""
    small = image.quantize(256)
    palette = np.zeros((256, 3), np.uint16)
    found = np.array(small.getpalette(), np.uint16).reshape(-1, 3)
    palette[: len(found)] = found * step
    colours = np.zeros((3, 256 ** np.dtype(dtype).itemsize), np.uint16)
    colours[:, :256] = palette.T
    values = np.asarray(small).astype(dtype)
    return tiff_of(values, "palette", colormap=colours)


def with_lowest_bit_first(pixels: Pixels) -> bytes:
    """A TIFF whose bytes are turned around, bit by bit."""
    turned = np.packbits(np.unpackbits(pixels.view(np.uint8), bitorder="little"))
    data = tiff_of(
        turned.view(pixels.dtype).reshape(pixels.shape), extratags=[(65_000, 3, 1, 2, True)]
    )
    return data.replace(struct.pack("<HHI", 65_000, 3, 1), struct.pack("<HHI", 266, 3, 1))


def adobe_tags() -> list[tuple[Any, ...]]:
    """The transfer function, the white point and the primaries of Adobe RGB."""
    curve = (np.linspace(0, 1, 256) ** (563 / 256) * 65_535).round().astype(int).tolist()
    primaries = (64, 100, 33, 100, 21, 100, 71, 100, 15, 100, 6, 100)
    white = (3127, 10_000, 3290, 10_000)
    return [(301, 3, 256, curve, True), (318, 5, 2, white, True), (319, 5, 6, primaries, True)]


def tiff_with_exif_space(pixels: Pixels, space: int) -> bytes:
    """A TIFF whose EXIF directory states a colour space."""
    data = tiff_of(pixels, extratags=[(65_000, 4, 1, 0, True)])
    directory = struct.pack("<HHHIHHI", 1, 0xA001, 3, 1, space, 0, 0)
    data += bytes(len(data) % 2)
    before = struct.pack("<HHII", 65_000, 4, 1, 0)
    return data.replace(before, struct.pack("<HHII", 34_665, 4, 1, len(data))) + directory


def of_type(kind: str, pixels: NDArray[np.uint8] | None = None) -> Pixels:
    """The scene as samples of another type, over the range of that type; floats from 0 to 1."""
    dtype, found = np.dtype(kind), scene() if pixels is None else pixels
    if dtype.kind == "f":
        return (found / 255).astype(dtype)
    return (found / 255 * np.iinfo(dtype).max).round().astype(dtype)


def bmp_of(pixels: NDArray[np.uint8], alpha: int | None = None, profile: bytes = b"") -> bytes:
    """A BMP of 32 bits with a mask of alpha, whose fifth header may hold a profile."""
    height, width = pixels.shape[:2]
    fourth = np.full((height, width, 1), 0 if alpha is None else alpha, np.uint8)
    data = np.concatenate([pixels[..., ::-1], fourth], axis=-1)[::-1].tobytes()
    header = struct.pack("<IiiHHIIiiII", 124, width, height, 1, 32, 3, len(data), 2835, 2835, 0, 0)
    header += struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    header += (b"MBED"[::-1] if profile else b"sRGB"[::-1]) + bytes(48) + struct.pack("<I", 4)
    header += struct.pack("<III", 124 + len(data), len(profile), 0)
    start = 14 + len(header)
    size = start + len(data) + len(profile)
    return b"BM" + struct.pack("<IHHI", size, 0, 0, start) + header + data + profile


def with_exif(format_name: str, pixels: Pixels, tags: dict[int, Any], **options: Any) -> bytes:
    """An image with tags of EXIF; those from 0xA000 on in its second directory."""
    exif = Image.Exif()
    for tag, value in tags.items():
        (exif.get_ifd(0x8769) if tag >= 0xA000 else exif)[tag] = value
    return encoded(pixels, format_name, exif=exif, **options)


_TURNED: dict[int, Callable[[Pixels], Pixels]] = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, -1),
}
"""The scene as it lies in a file of each orientation."""


@functools.cache
def same_scene() -> dict[str, bytes]:
    """Files of the scene in colour."""
    pixels = scene()
    rgb = Image.fromarray(pixels)
    opaque = np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])
    fine = {"quality": 96, "subsampling": 0}
    srgb_table = srgb_curve(np.linspace(0, 1, 1024)).tolist()
    adobe = eight(in_space(ADOBE_RGB) ** (256 / 563))
    p3 = eight(srgb_from_linear(in_space(DISPLAY_P3)))
    of_p3 = rgb_profile(DISPLAY_P3, srgb_table)
    r03 = {0xA001: 65535, 0xA005: {1: "R03\0"}}
    nits = in_space(BT_2020) * 203
    files = {
        "JPEG": encoded(rgb, "JPEG", **fine),
        "JPEG 4:2:0": encoded(rgb, "JPEG", quality=95),
        "JPEG progressive": encoded(rgb, "JPEG", progressive=True, **fine),
        "JPEG CMYK": encoded(rgb.convert("CMYK"), "JPEG", **fine),
        "JPEG without its end": encoded(rgb, "JPEG", **fine)[:-2],
        "JPEG without half its end": encoded(rgb, "JPEG", **fine)[:-1],
        "JPEG progressive without its end": encoded(rgb, "JPEG", progressive=True, **fine)[:-2],
        "JPEG Adobe RGB, profile": encoded(
            adobe, "JPEG", icc_profile=rgb_profile(ADOBE_RGB, 563 / 256), **fine
        ),
        "JPEG Adobe RGB, EXIF R03": with_exif("JPEG", adobe, r03, **fine),
        "JPEG Adobe RGB, EXIF space 2": with_exif("JPEG", adobe, {0xA001: 2}, **fine),
        "JPEG Display P3, profile": encoded(p3, "JPEG", icc_profile=of_p3, **fine),
        "JPEG of several pictures": encoded(
            rgb, "MPO", save_all=True, append_images=[rgb.rotate(90)], **fine
        ),
        "PNG": encoded(rgb),
        "PNG opaque alpha": encoded(Image.fromarray(opaque)),
        "PNG palette": encoded(rgb.quantize(256)),
        "PNG 16 bits": png_of(of_type("u2")),
        "PNG 16 bits, alpha": png_of(of_type("u2", opaque)),
        "PNG 16 bits, another colour clear": png_of(
            of_type("u2"), png_chunk(b"tRNS", b"\0\1\0\1\0\1")
        ),
        "PNG linear, 16 bits": png_of(sixteen(light()), gamma_chunk(1.0)),
        "PNG gamma 1/1.8": png_of(eight(light() ** (1 / 1.8)), gamma_chunk(1 / 1.8)),
        "PNG gamma 1/2.2": png_of(pixels, gamma_chunk(0.45455)),
        "PNG Display P3, cHRM": png_of(
            eight(in_space(DISPLAY_P3) ** (1 / 2.2)), gamma_chunk(1 / 2.2) + P3_CHUNK
        ),
        "PNG sRGB chunk over gAMA": png_of(pixels, gamma_chunk(1.0) + png_chunk(b"sRGB", b"\0")),
        "PNG cICP sRGB": png_of(pixels, code_points(1, 13)),
        "PNG cICP Display P3": png_of(p3, code_points(12, 13)),
        "PNG cICP linear BT.2020, 16 bits": png_of(sixteen(in_space(BT_2020)), code_points(9, 8)),
        "PNG cICP BT.2020 PQ, 16 bits": png_of(sixteen(pq(nits)), code_points(9, 16)),
        "PNG cICP BT.2020 HLG, 16 bits": png_of(
            sixteen(hlg((nits / 1000) ** (1 / 1.2))), code_points(9, 18)
        ),
        "PNG cICP narrow range": png_of(
            eight((16 + pixels / 255 * 219) / 255), code_points(1, 13, 0)
        ),
        "PNG with a damaged text": png_of(pixels, png_chunk(b"tEXt", b"a\0b")[:-1] + b"!"),
        "PNG animated": encoded(rgb, save_all=True, append_images=[rgb.rotate(90)]),
        "WEBP lossless": encoded(rgb, "WEBP", lossless=True),
        "WEBP lossy": encoded(rgb, "WEBP", quality=95),
        "WEBP Display P3": encoded(p3, "WEBP", lossless=True, icc_profile=of_p3),
        "WEBP Adobe RGB, EXIF R03": with_exif("WEBP", adobe, r03, lossless=True),
        "GIF": encoded(rgb.quantize(256), "GIF"),
        "BMP": encoded(rgb, "BMP"),
        "BMP opaque alpha": bmp_of(pixels, 255),
        "BMP alpha that is zero": bmp_of(pixels, 0),
        "BMP with a profile": bmp_of(p3, 255, of_p3),
        "TIFF LZW": encoded(rgb, "TIFF", compression="tiff_lzw"),
        "TIFF Deflate": encoded(rgb, "TIFF", compression="tiff_adobe_deflate"),
        "TIFF PackBits": encoded(rgb, "TIFF", compression="packbits"),
        "TIFF JPEG": encoded(rgb, "TIFF", compression="jpeg", quality=96),
        "TIFF big": encoded(rgb, "TIFF", big_tiff=True),
        "TIFF Display P3, float": tiff_of(
            of_type("f4", p3), extratags=[(34675, 7, None, of_p3, True)]
        ),
        "TIFF 12 bits in 16": tiff_of(
            (pixels / 255 * 4095).round().astype(np.uint16), planarconfig="separate"
        ),
        "TIFF 8 bits in 32": tiff_of(pixels.astype(np.uint32)),
        "TIFF 16 bits in float": tiff_of(pixels.astype(np.float32) * 257),
        "TIFF CMYK, 16 bits in planes": tiff_of(
            of_type("u2", np.asarray(rgb.convert("CMYK"))), "separated", planarconfig="separate"
        ),
        "TIFF of five channels": tiff_of(
            np.dstack([pixels, pixels[..., :2]]), extrasamples=["unspecified", "unspecified"]
        ),
        "TIFF of five channels, 16 bits": tiff_of(
            of_type("u2", np.dstack([pixels, pixels[..., :2]])),
            extrasamples=["unspecified", "unspecified"],
        ),
        "TIFF 12 bits in 16, together": tiff_of((pixels / 255 * 4095).round().astype(np.uint16)),
        "TIFF 10 bits in 16": tiff_of((pixels / 255 * 1023).round().astype(np.uint16)),
        "TIFF 12 bits in 16, turned": tiff_of(
            np.ascontiguousarray(np.rot90((pixels / 255 * 4095).round().astype(np.uint16))),
            extratags=[(274, 3, 1, 6, True)],
        ),
        "TIFF after a preview": tiff_after_a_preview(pixels),
        "TIFF palette of 8-bit colours": palette_tiff(rgb, 1),
        "TIFF palette": palette_tiff(rgb, 257),
        "TIFF palette of 16 bits": palette_tiff(rgb, 257, np.uint16),
        "TIFF 16 bits, lowest bit first": with_lowest_bit_first(of_type("u2")),
        "TIFF samples without a kind": tiff_of(
            of_type("u2"), extratags=[(65_000, 3, 1, 4, True)]
        ).replace(struct.pack("<HHI", 65_000, 3, 1), struct.pack("<HHI", 339, 3, 1)),
        "TIFF CMYK and a spot colour": tiff_of(
            np.dstack([np.asarray(rgb.convert("CMYK")), opaque[..., 3]]),
            "separated",
            extrasamples=["unspecified"],
        ),
        "TIFF of four channels, the last not named": without_tag(
            tiff_of(np.dstack([pixels, opaque[..., 3] * 0]), extrasamples=["unspecified"]), 338
        ),
        "TIFF Adobe RGB, primaries and curve": tiff_of(adobe, extratags=adobe_tags()),
        "TIFF Adobe RGB, primaries and curve, float": tiff_of(
            of_type("f4", adobe), extratags=adobe_tags()
        ),
        "TIFF Display P3, primaries": tiff_of(
            p3,
            extratags=[(319, 5, 6, (68, 100, 32, 100, 265, 1000, 69, 100, 15, 100, 6, 100), True)],
        ),
        "TIFF Adobe RGB, EXIF": tiff_with_exif_space(adobe, 2),
        "TIFF Adobe RGB, EXIF, float": tiff_with_exif_space(of_type("f4", adobe), 2),
        "TIFF linear, curve": tiff_of(
            eight(light()), extratags=[(301, 3, 256, tuple(range(0, 65_536, 257)), True)]
        ),
        **{
            f"TIFF {alpha}, planes, {options}": tiff_of(
                opaque, planarconfig="separate", extrasamples=[alpha], **options
            )
            for alpha in ("assocalpha", "unassalpha", "unspecified")
            for options in ({}, {"tile": (32, 32)}, {"compression": "zlib"})
        },
        "TIFF multiplied alpha": tiff_of(of_type("f4", opaque), extrasamples=["assocalpha"]),
    }
    for kind in ("u1", "u2", "u4", "i2", "i4", "f2", "f4", "f8"):
        for planes in ("contig", "separate"):
            for order in "<>":
                name = f"TIFF {kind}, {planes}, {order}"
                files[name] = tiff_of(of_type(kind), planarconfig=planes, byteorder=order)
        files[f"TIFF {kind}, Deflate"] = tiff_of(of_type(kind), compression="zlib")
        files[f"TIFF {kind}, tiles"] = tiff_of(of_type(kind), tile=(32, 32))
    for orientation, turned in _TURNED.items():
        lying = np.ascontiguousarray(turned(pixels))
        for name in ("JPEG", "PNG", "WEBP", "TIFF"):
            options = fine if name == "JPEG" else {"lossless": True} if name == "WEBP" else {}
            files[f"{name} turned {orientation}"] = with_exif(
                name, lying, {0x0112: orientation}, **options
            )
        files[f"TIFF float turned {orientation}"] = tiff_of(
            of_type("f4", lying), extratags=[(274, 3, 1, orientation, True)]
        )
    return files


@functools.cache
def same_grey_scene() -> dict[str, bytes]:
    """Files of the scene in grey, white where a key makes it transparent."""
    grey = np.asarray(Image.fromarray(scene()).convert("L"))
    whole = Image.fromarray(grey)
    opaque = np.dstack([grey, np.full_like(grey, 255)])
    files = {
        "JPEG": encoded(whole, "JPEG", quality=96),
        "PNG": encoded(whole),
        "PNG 16 bits": png_of(of_type("u2", grey)),
        "PNG 16 bits, alpha": png_of(of_type("u2", opaque)),
        "PNG linear, 16 bits": png_of(sixteen(srgb_curve(grey / 255)), gamma_chunk(1.0)),
        "PNG 12 bits in 16": png_of((grey / 255 * 4095).round().astype(np.uint16)),
        "TIFF alpha, 16 bits": tiff_of(
            of_type("u2", opaque), "minisblack", extrasamples=["unassalpha"]
        ),
    }
    for kind in ("u1", "u2", "u4", "i1", "i2", "i4", "f2", "f4", "f8"):
        samples = of_type(kind, grey)
        top = 1 if samples.dtype.kind == "f" else np.iinfo(samples.dtype).max
        for order in "<>":
            files[f"TIFF {kind} {order}"] = tiff_of(samples, "minisblack", byteorder=order)
        files[f"TIFF {kind}, Deflate"] = tiff_of(samples, "minisblack", compression="zlib")
        files[f"TIFF {kind}, white is zero"] = tiff_of(
            (top - samples).astype(samples.dtype), "miniswhite"
        )
    return files


def keyed_greys(depth: int) -> tuple[bytes, NDArray[np.uint8]]:
    """A PNG of greys of so many bits, one of which is transparent; and the picture of it."""
    values = np.arange(64).reshape(8, 8) % 2**depth * (257 if depth == 16 else 1)
    if depth == 16:
        rows = [row.astype(">u2").tobytes() for row in values]
    else:
        bits = (values[..., None] >> np.arange(depth)[::-1]) & 1
        rows = [np.packbits(row.reshape(-1).astype(np.uint8)).tobytes() for row in bits]
    key = int(values[0, 1])
    chunk = png_chunk(b"tRNS", struct.pack(">H", key))
    data = png(8, 8, depth, 0, b"".join(b"\0" + row for row in rows), chunk)
    wanted = np.where(values == key, 255, values * 255 // (2**depth - 1))
    return data, np.repeat(wanted.astype(np.uint8)[..., None], 3, axis=-1)


def unread_kinds() -> dict[str, tuple[bytes, Sequence[str]]]:
    """Sound files of kinds that are not read, and words that a refusal must have."""
    jpeg = encoded(Image.fromarray(scene()), "JPEG")
    frame = jpeg.index(b"\xff\xc0")

    def marked(marker: int, precision: int = 8) -> bytes:
        changed = bytearray(jpeg)
        changed[frame + 1], changed[frame + 4] = marker, precision
        return bytes(changed)

    def with_compression(number: int) -> bytes:
        data = bytearray(tiff_of(scene()))
        place = data.index(struct.pack("<HHI", 259, 3, 1))
        struct.pack_into("<H", data, place + 8, number)
        return bytes(data)

    bands = np.dstack([scene(), scene()])
    raw = tiff_of(scene(), extratags=[(50706, 1, 4, b"\1\4\0\0", True)])
    preview = tiff_of(scene(), subfiletype=1)
    preview = preview.replace(struct.pack("<HH", 305, 2), struct.pack("<HH", 330, 4))
    return {
        "JPEG of 12 bits": (marked(0xC1, 12), ["JPEG", "12 bits"]),
        "JPEG lossless": (marked(0xC3), ["JPEG", "lossless"]),
        "JPEG-LS": (marked(0xF7), ["JPEG-LS"]),
        "TIFF of JPEG 2000": (with_compression(34712), ["TIFF", "JPEG 2000"]),
        "TIFF of LERC": (with_compression(34887), ["TIFF", "LERC"]),
        "TIFF of JPEG XL": (with_compression(50002), ["TIFF", "JPEG XL"]),
        "TIFF of WebP": (with_compression(50001), ["TIFF", "WebP"]),
        "TIFF of six greys": (
            tiff_of(bands, "minisblack", planarconfig="contig"),
            ["TIFF", "6 × 8-bit"],
        ),
        "TIFF complex": (
            tiff_of(scene()[..., 0].astype(np.complex64), "minisblack"),
            ["TIFF", "complex"],
        ),
        "DNG": (raw, ["raw"]),
        "NEF": (preview, ["raw"]),
        "HEIC": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40), ["HEIC"]),
        "AVIF": (b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + bytes(40), ["AVIF"]),
        "JPEG XL": (b"\xff\x0a" + bytes(40), ["JPEG XL"]),
        "a page": (b"<!DOCTYPE html><html>", ["HTML"]),
        "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", ["git lfs pull"]),
        "HEIF of another kind": (b"\0\0\0\x18ftypmif2\0\0\0\0miafvvic" + bytes(40), ["HEIF"]),
        "AVIF in order": (b"\0\0\0\x18ftypmif1\0\0\0\0miafavif" + bytes(40), ["AVIF"]),
        "JPEG XS": (b"\xff\x10\xff\x50" + bytes(40), ["JPEG XS"]),
        "TIFF of CMY": (
            tiff_of(scene()).replace(
                struct.pack("<HHIHH", 262, 3, 1, 2, 0), struct.pack("<HHIHH", 262, 3, 1, 5, 0)
            ),
            ["TIFF", "3 × 8-bit"],
        ),
        "PNG of an iOS app": (
            png(8, 8, 8, 6, b"").replace(
                b"\n\x1a\n", b"\n\x1a\n" + png_chunk(b"CgBI", b"\x50\0\x20\2"), 1
            ),
            ["PNG", "CgBI"],
        ),
        "base64": (base64.b64encode(jpeg), ["base64"]),
        "an answer in JSON": (b'{"error": "not found"}', ["JSON", "server"]),
        "an answer in XML": (b"<?xml version='1.0'?><Error/>", ["XML", "server"]),
        "zeros": (bytes(4096), ["all bytes are zero", "Copy the file again"]),
        "JPEG after a line": (b"\r\n" + jpeg, ["follows after 2 other bytes"]),
        "git-annex": (b"/annex/objects/SHA256E-s1--a.jpg\n", ["git annex get"]),
        "AppleDouble": (b"\0\5\x16\7\0\2\0\0Mac OS X", ["AppleDouble"]),
    }
