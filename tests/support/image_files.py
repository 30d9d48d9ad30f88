"""Image files of every accepted kind, made on the spot: what decoders are tested with."""

from __future__ import annotations

import functools
import io
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

SIDE = (33, 26)
"""Width and height: odd, unequal, and no multiple of the blocks of any format."""


def picture(width: int = SIDE[0], height: int = SIDE[1], seed: int = 0) -> NDArray[np.uint8]:
    """A smooth picture with a little noise, (H, W, 3)."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    waves = [np.sin(rows / (3 + k) + columns / (5 - k) + seed) for k in range(3)]
    smooth = 127 + 100 * np.stack(waves, axis=-1)
    noisy = smooth + rng.normal(0, 5, (height, width, 3))
    return np.asarray(noisy.clip(0, 255), dtype=np.uint8)


def encoded(image: Image.Image | NDArray[Any], format_name: str = "PNG", **options: Any) -> bytes:
    """The bytes of a file with this image in it."""
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image)
    buffer = io.BytesIO()
    image.copy().save(buffer, format_name, **options)  # saving leaves settings on an image
    return buffer.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """One chunk of a PNG file."""
    checksum = zlib.crc32(kind + content).to_bytes(4, "big")
    return len(content).to_bytes(4, "big") + kind + content + checksum


def png(
    width: int, height: int, depth: int, colour: int, rows: bytes, chunks: bytes = b""
) -> bytes:
    """A PNG file put together by hand, for what Pillow reads but does not write."""
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([depth, colour, 0, 0, 0])
    image = png_chunk(b"IHDR", header) + chunks + png_chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + image + png_chunk(b"IEND", b"")


def slow_png(megapixels: int = 24) -> bytes:
    """A valid file, and small, whose decoding takes a good part of a second."""
    row = np.random.default_rng(0).integers(0, 256, (1, 4000, 3), dtype=np.uint8)
    return encoded(np.repeat(row, megapixels * 250, axis=0), compress_level=1)


@functools.cache
def seeds() -> dict[str, bytes]:
    """A valid file of each kind, by a name that begins with its format."""
    pixels = picture()
    rgb = Image.fromarray(pixels)
    second = Image.fromarray(picture(seed=1))
    grey, palette = rgb.convert("L"), rgb.quantize(64)
    alpha = rgb.convert("RGBA")
    alpha.putalpha(grey)
    sixteen = np.asarray(grey, dtype=np.uint16) * 257

    def frames() -> dict[str, Any]:
        return {"save_all": True, "append_images": [second.copy(), rgb.rotate(90)]}

    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    made = {
        "JPEG rgb": encoded(rgb, "JPEG", quality=90),
        "JPEG grey": encoded(grey, "JPEG"),
        "JPEG cmyk": encoded(rgb.convert("CMYK"), "JPEG"),
        "JPEG progressive": encoded(rgb, "JPEG", progressive=True),
        "JPEG srgb": encoded(rgb, "JPEG", icc_profile=srgb),
        "JPEG garbage profile": encoded(rgb, "JPEG", icc_profile=b"garbage" * 40),
        "JPEG of several pictures": encoded(rgb, "MPO", **frames()),
        "PNG rgb": encoded(rgb),
        "PNG grey": encoded(grey),
        "PNG bilevel": encoded(grey.convert("1")),
        "PNG palette": encoded(palette),
        "PNG palette, one clear": encoded(palette, transparency=3),
        "PNG palette, half clear": encoded(palette, transparency=bytes(range(64))),
        "PNG rgb, one clear": encoded(rgb, transparency=tuple(pixels[0, 0].tolist())),
        "PNG alpha": encoded(alpha),
        "PNG grey and alpha": encoded(alpha.convert("LA")),
        "PNG 16-bit grey": encoded(sixteen),
        "PNG 16-bit rgb": _png_sixteen_bits(pixels),
        "PNG animated": encoded(rgb, **frames()),
        "PNG garbage profile": encoded(rgb, icc_profile=b"garbage" * 40),
        "WEBP lossy": encoded(rgb, "WEBP"),
        "WEBP lossless": encoded(rgb, "WEBP", lossless=True),
        "WEBP alpha": encoded(alpha, "WEBP"),
        "WEBP animated": encoded(rgb, "WEBP", **frames()),
        "WEBP srgb": encoded(rgb, "WEBP", icc_profile=srgb),
        "GIF": encoded(palette, "GIF"),
        "GIF interlaced": encoded(palette, "GIF", interlace=True),
        "GIF transparent": encoded(palette, "GIF", transparency=3),
        "GIF animated": encoded(rgb, "GIF", **frames()),
        "BMP rgb": encoded(rgb, "BMP"),
        "BMP grey": encoded(grey, "BMP"),
        "BMP palette": encoded(palette, "BMP"),
        "BMP bilevel": encoded(grey.convert("1"), "BMP"),
        "BMP alpha": encoded(alpha, "BMP"),
        "TIFF raw": encoded(rgb, "TIFF"),
        "TIFF big": encoded(rgb, "TIFF", big_tiff=True),
        "TIFF cmyk": encoded(rgb.convert("CMYK"), "TIFF"),
        "TIFF alpha": encoded(alpha, "TIFF"),
        "TIFF lab": encoded(_in_lab(rgb), "TIFF"),
        "TIFF 16-bit grey": encoded(sixteen, "TIFF"),
        "TIFF float": encoded(np.asarray(grey, dtype=np.float32) / 255, "TIFF"),
        "TIFF 32-bit": encoded(np.asarray(grey, dtype=np.int32) * 9999, "TIFF"),
        "TIFF pages": encoded(rgb, "TIFF", **frames()),
        "TIFF fax": encoded(grey.convert("1"), "TIFF", compression="group4"),
    }
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg"):
        made[f"TIFF {compression}"] = encoded(rgb, "TIFF", compression=compression)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for name in ("JPEG", "PNG", "WEBP", "TIFF"):
            made[f"{name} turned {orientation}"] = encoded(rgb, name, exif=exif)
    return made


def _png_sixteen_bits(pixels: NDArray[np.uint8]) -> bytes:
    height, width = pixels.shape[:2]
    wide = (pixels.astype(np.uint16) * 257).astype(">u2").reshape(height, -1)
    rows = b"".join(b"\x00" + row.tobytes() for row in wide)
    return png(width, height, 16, 2, rows)


def _in_lab(rgb: Image.Image) -> Image.Image:
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    made = ImageCms.applyTransform(rgb, ImageCms.buildTransform(srgb, lab, "RGB", "LAB"))
    assert made is not None
    return made
