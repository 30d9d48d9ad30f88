"""Reads the declared layout of a TIFF file, and decodes the kinds of TIFF that Pillow misreads.

Pillow reads the usual kinds of TIFF. For other kinds, Pillow fails, or returns wrong pixels without
an error. For example, it may swap bytes, read planes as rows, or read signed numbers as unsigned.
`tifffile` decodes these kinds. Samples of more than eight bits, or with a sign or a float type, are
converted to eight bits.
"""

from __future__ import annotations

import io
import logging
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from model_store.errors import CorruptImage, ImageError, UnsupportedImage

if TYPE_CHECKING:
    import tifffile


Samples = NDArray[Any]

_TOPS = (255.0, 1023.0, 4095.0, 65_535.0)
"""Largest values of the usual depths: 8 bits, 10 and 12 bits (cameras), and 16 bits.

14 bits are not in the list, because 14-bit values may also come from a dark 16-bit picture.
"""

_MIN_SHARE = 1 / 16
"""Minimum share of a depth's range that the values of a picture must use. If the values use less,
the picture would be black, so the values are stretched."""

_ABOVE_ONE = 2.0
"""Float samples up to this value are treated as samples from 0 to 1 with some brighter
highlights."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale from sample values to eight bits.

    Attributes
    ----------
    low, top : the sample values that become 0 and 255.
    stretched : whether ``low`` and ``top`` are the extremes of the picture.
    """

    low: float
    top: float
    stretched: bool

    def __call__(self, values: Samples) -> NDArray[np.uint8]:
        """Return ``values`` as eight bits; NaN becomes 0."""
        finite = np.nan_to_num(
            values.astype(np.float32), nan=self.low, posinf=self.top, neginf=self.low
        )
        span = max(self.top - self.low, 1e-30)
        scaled = (finite - np.float32(self.low)) * np.float32(255 / span)
        return np.asarray(scaled.clip(0, 255).round(), dtype=np.uint8)

    @property
    def warning(self) -> str:
        """One sentence for the user about the information that the conversion loses."""
        if self.stretched:
            return (
                "More than eight bits per channel were rescaled to eight; the values from "
                f"{self.low:g} to {self.top:g} were stretched."
            )
        return "More than eight bits per channel were rescaled to eight."


def scale_of(dtype: np.dtype[Any], low: float, high: float) -> Scale:
    """Return the scale for samples with a given type and given extremes.

    Files rarely use their whole declared range. For example, 32-bit files may contain 8-bit values,
    and 16-bit files may contain the 12-bit values of a camera. So the smallest usual depth that
    contains the values is used. If no usual depth contains the values, or if the picture would be
    black, the values are stretched: the smallest value becomes 0, and the largest value becomes
    255.

    Parameters
    ----------
    low, high : the smallest and the largest finite sample.
    """
    if low < 0 or not np.isfinite((low, high)).all():
        return Scale(low, high, stretched=True)
    if dtype.kind == "f":
        tops = [(1.0, _ABOVE_ONE), *((top, top) for top in _TOPS)]
    else:
        largest = float(np.iinfo(dtype).max)
        tops = [(top, top) for top in _TOPS if top < largest] + [(largest, largest)]
    top = next((top for top, most in tops if high <= most), high)
    if 0 < high < top * _MIN_SHARE:
        return Scale(low if low < high else 0.0, high, stretched=True)
    return Scale(0.0, top, stretched=top == high and top not in dict(tops))


def extremes(values: Samples) -> tuple[float, float]:
    """Return the smallest and the largest finite sample; 0 and 0 if no sample is finite."""
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)


logging.getLogger("tifffile").setLevel(logging.CRITICAL + 1)  # the error says it

_TYPES = {1: "B", 3: "H", 4: "I", 16: "Q"}
_MAX_VALUES = 16
"""Maximum number of values to read from a tag. This number is enough for all channels of a
picture."""

_MAX_TAGS = 4096

_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _MASK, _SEPARATED, _YCBCR, _LAB = (
    *range(6),
    6,
    8,
)
_COLOUR_MAP = 320
_MAX_COLOURS = 3 * 2**16
_PHOTOMETRIC = {
    _WHITE_IS_ZERO: "grey, white is zero",
    _BLACK_IS_ZERO: "grey",
    _RGB: "RGB",
    _PALETTE: "palette",
    _MASK: "mask",
    _SEPARATED: "CMYK",
    _YCBCR: "YCbCr",
    _LAB: "Lab",
    9: "Lab of ICC",
    10: "Lab of ITU",
    32_803: "colour filter array",
    32_844: "LogL",
    32_845: "LogLuv",
    34_892: "linear raw",
}
_COMPRESSION = {
    1: "uncompressed",
    5: "LZW",
    6: "old JPEG",
    7: "JPEG",
    8: "Deflate",
    22_610: "JPEG XR",
    32_773: "PackBits",
    32_946: "Deflate",
    33_003: "JPEG 2000",
    33_005: "JPEG 2000",
    34_712: "JPEG 2000",
    34_887: "LERC",
    34_925: "LZMA",
    34_933: "PNG",
    50_000: "Zstandard",
    50_001: "WebP",
    50_002: "JPEG XL",
    52_546: "JPEG XL",
}
_READ_BY_PILLOW = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 32_771, 32_773, 32_946})
"""Compressions that Pillow supports. If a file with such a compression cannot be decoded, the file
is damaged."""

_SAMPLE_FORMATS = {
    1: "unsigned",
    2: "signed",
    3: "float",
    4: "unsigned",
    5: "complex",
    6: "complex",
}
_RAW_PHOTOMETRIC = frozenset({32_803, 34_892})
_DNG_VERSION, _SUB_IFDS = 50_706, 330
_REDUCED, _MASKS = 1, 4
"""Bits in the type of a page. One bit marks a reduced version of another page; the other bit marks
a mask."""

_MAX_PAGES_LOOKED_AT = 16
COLOUR_TAGS = (301, 318, 319)
"""Tags for transfer function, white point and primaries."""

_SAVE_AS = "Save it as a TIFF or PNG of 8 or 16 bits per channel, uncompressed or with Deflate."


@dataclass(frozen=True, slots=True)
class TiffLayout:
    """The layout of a TIFF file's first page that is not a preview.

    Attributes
    ----------
    page : index of the page, from 0.
    width, height : size in pixels; 0 if it is not declared.
    bits : bits of each sample.
    sample_format : 1 unsigned, 2 signed, 3 floating point.
    compression, photometric, orientation : tag values in the file.
    extra : kinds of extra samples: 0 unspecified, 1 premultiplied alpha, 2 alpha.
    n_samples : number of samples of each pixel.
    separate : whether each channel is a separate plane.
    is_raw : whether the file is a camera's raw image, so that the page is not the final picture.
    reversed_bits : whether the lowest bit of each byte comes first.
    short_colours : whether the palette has 8-bit colours instead of 16-bit colours.
    """

    page: int
    width: int
    height: int
    bits: tuple[int, ...]
    sample_format: int
    compression: int
    photometric: int
    orientation: int
    extra: tuple[int, ...]
    n_samples: int
    separate: bool
    is_raw: bool
    reversed_bits: bool
    short_colours: bool

    @property
    def is_read_by_pillow(self) -> bool:
        """True for kinds that Pillow reads correctly.

        The tests compare a picture of each kind with an 8-bit picture.
        """
        if (
            len(set(self.bits)) > 1
            or self.sample_format != 1
            or self.short_colours
            or (self.reversed_bits and self.bits[0] > 8)
        ):
            return False
        depth, planes = self.bits[0], self.separate and self.n_samples > 1
        if self.photometric in {_WHITE_IS_ZERO, _BLACK_IS_ZERO} and self.n_samples == 1:
            return depth in {1, 2, 4, 8} or (depth == 16 and self.photometric == _BLACK_IS_ZERO)
        if self.photometric == _BLACK_IS_ZERO and self.n_samples == 2:
            return depth == 8 and not planes and self.extra[:1] in {(0,), (2,)}
        if self.photometric in {_RGB, _SEPARATED}:
            n_extra = self.n_samples - (3 if self.photometric == _RGB else 4)
            is_alpha = n_extra == 1 and self.extra[:1] in {(1,), (2,)}
            may_have_extra = self.photometric == _RGB and n_extra == 1 and not planes
            if n_extra and not (may_have_extra or (is_alpha and self.photometric == _RGB)):
                return False
            return depth in {8, 16} and not (planes and self.compression == 1)
        return self.photometric in {_PALETTE, _YCBCR, _LAB} and depth <= 8 and not planes

    def __str__(self) -> str:
        """Return the name of the kind, such as ``3 × 32-bit float, RGB, separate planes, LERC``."""
        bits = "/".join(map(str, sorted(set(self.bits))))
        kind = _SAMPLE_FORMATS.get(self.sample_format, f"format {self.sample_format}")
        photometric = _PHOTOMETRIC.get(self.photometric, f"photometric {self.photometric}")
        planes = ", separate planes" if self.separate and self.n_samples > 1 else ""
        compression = _COMPRESSION.get(self.compression, f"compression {self.compression}")
        return f"{self.n_samples} × {bits}-bit {kind}, {photometric}{planes}, {compression}"

    def refusal(self) -> UnsupportedImage:
        """Return the error for a TIFF of an unsupported kind."""
        if self.is_raw:
            return UnsupportedImage(
                "The file is not supported: it is a camera's raw image (such as DNG, NEF or ARW). "
                "Convert it to JPEG or PNG."
            )
        return UnsupportedImage(f"This kind of TIFF is not supported: {self}. {_SAVE_AS}")

    def failure(self) -> CorruptImage | UnsupportedImage:
        """Return the error for a file that Pillow cannot decode."""
        if self.compression not in _READ_BY_PILLOW:
            return self.refusal()
        return CorruptImage(
            f"The TIFF image ({self}) is damaged or truncated and cannot be decoded. Use a "
            "complete file."
        )


def tiff_layout(data: bytes) -> TiffLayout | None:
    """Read the layout of a TIFF file; None if the file cannot be read."""
    try:
        pages = list(_pages(data))
    except (struct.error, IndexError, KeyError):
        return None
    previews = [bool(tags.get(254, (0,))[0] & (_REDUCED | _MASKS)) for tags in pages]
    page = previews.index(False) if False in previews else 0
    first, tags = pages[0], pages[page]

    def one(tag: int, default: int) -> int:
        return tags.get(tag, (default,))[0]

    bits = tags.get(258, (1,))
    n_samples = one(277, len(bits))
    photometric = one(262, _BLACK_IS_ZERO)
    colours = tags.get(_COLOUR_MAP, ()) if photometric == _PALETTE else ()
    reduced = bool(first.get(254, (0,))[0] & _REDUCED)
    return TiffLayout(
        page,
        one(256, 0),
        one(257, 0),
        bits if len(bits) > 1 else bits * min(n_samples, _MAX_VALUES),
        max(tags.get(339, (1,))),
        one(259, 1),
        photometric,
        one(274, 1),
        tags.get(338, ()),
        n_samples,
        one(284, 1) == 2,
        photometric in _RAW_PHOTOMETRIC
        or _DNG_VERSION in first
        or (reduced and _SUB_IFDS in first),
        one(266, 1) == 2,
        0 < max(colours, default=0) < 256,
    )


def _pages(data: bytes) -> Iterator[dict[int, tuple[int, ...]]]:
    """Yield the tags of each page.

    The function stops after the first page that is not a preview, and at a limit on the number of
    pages.
    """
    order = "<" if data[:2] == b"II" else ">"
    big = data[2:4] in {b"+\0", b"\0+"}
    count, size, offset = ("Q", 20, "Q") if big else ("H", 12, "I")
    (place,) = struct.unpack_from(order + offset, data, 8 if big else 4)
    for n_pages in range(_MAX_PAGES_LOOKED_AT):
        try:
            (n_tags,) = struct.unpack_from(order + count, data, place)
            place += struct.calcsize(order + count)
            tags = _tags(data, place, n_tags)
            yield tags
            if not tags.get(254, (0,))[0] & (_REDUCED | _MASKS):
                return
            (place,) = struct.unpack_from(order + offset, data, place + size * n_tags)
        except struct.error:
            if n_pages:  # use the pages before
                return
            raise
        if not place:
            return


def _tags(data: bytes, place: int, n_tags: int) -> dict[int, tuple[int, ...]]:
    """Read the integer tags of a page; the number of values per tag is limited."""
    order = "<" if data[:2] == b"II" else ">"
    size, offset = (20, "Q") if data[2:4] in {b"+\0", b"\0+"} else (12, "I")
    tags: dict[int, tuple[int, ...]] = {}
    for start in range(place, place + size * min(n_tags, _MAX_TAGS), size):
        tag, kind = struct.unpack_from(order + "HH", data, start)
        (n_values,) = struct.unpack_from(order + offset, data, start + 4)
        if kind not in _TYPES or not n_values or tag in tags:
            tags.setdefault(tag, (0,))
            continue
        n_read = min(n_values, _MAX_COLOURS if tag == _COLOUR_MAP else _MAX_VALUES)
        layout = f"{order}{n_read}{_TYPES[kind]}"
        inline = struct.calcsize(f"{order}{_TYPES[kind]}") * n_values <= struct.calcsize(offset)
        at = start + 4 + struct.calcsize(order + offset)
        if not inline:
            (at,) = struct.unpack_from(order + offset, data, at)
        tags[tag] = struct.unpack_from(layout, data, at)
    return tags


def decode_tiff(data: bytes, layout: TiffLayout) -> tuple[Image.Image, list[str]]:
    """Decode a TIFF that Pillow does not read, to eight bits for each sample.

    Returns
    -------
    A picture in mode L, LA, RGB, RGBA or CMYK, with the profile and orientation of the file, and a
    warning for each loss.

    Raises
    ------
    UnsupportedImage : `tifffile` does not support the file either, or the channels are not colours.
    CorruptImage : a part of the file is missing.
    """
    import tifffile  # noqa: PLC0415 - slow, and few files need it

    n_colours = {_WHITE_IS_ZERO: 1, _BLACK_IS_ZERO: 1, _RGB: 3, _PALETTE: 1, _SEPARATED: 4}.get(
        layout.photometric, 0
    )
    n_extra = layout.n_samples - n_colours
    if not n_colours or n_extra < 0 or (n_extra > 1 and n_colours == 1):
        raise layout.refusal()
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            page = cast("tifffile.TiffPage", file.pages[layout.page])
            _require_whole(page, len(data), layout)
            samples: NDArray[Any] = page.asarray(maxworkers=1)
            profile, colours = page.tags.valueof(34_675), page.colormap
            exif = page.tags.valueof(34_665) or {}
            stated = _colour_tags(page)
    except (MemoryError, ImageError):
        raise
    except Exception as error:  # a damaged file can raise any exception
        raise layout.refusal() from error
    samples = samples.reshape(_shape(layout, samples))
    if layout.separate:
        samples = np.moveaxis(samples, 0, -1)
    if layout.photometric == _PALETTE and colours is not None and samples.dtype.kind == "u":
        found: NDArray[Any] = colours[:, samples[..., 0]]
        found = found if layout.short_colours else found >> 8
        samples = np.moveaxis(found, 0, -1).astype(np.uint8)
        layout = replace(layout, photometric=_RGB, n_samples=3)
        n_colours = 3
    if samples.dtype.kind not in "biuf" or layout.photometric == _PALETTE:
        raise layout.refusal()
    picture, warnings = _picture(samples, layout, n_colours, profile)
    if isinstance(space := exif.get("ColorSpace"), int):
        picture.getexif().get_ifd(0x8769)[0xA001] = space
    picture.info["tiff_colours"] = stated
    return picture, warnings


def _colour_tags(page: tifffile.TiffPage) -> dict[int, tuple[float, ...]]:
    """Return the tags for transfer function, white point and primaries as numbers."""
    found = {
        tag: tuple(np.ravel(page.tags.valueof(tag)).tolist())
        for tag in COLOUR_TAGS
        if tag in page.tags
    }
    for tag in {318, 319} & found.keys():
        numbers = found[tag]
        found[tag] = tuple(a / b for a, b in zip(numbers[::2], numbers[1::2], strict=True))
    return found


def _require_whole(page: tifffile.TiffPage, n_bytes: int, layout: TiffLayout) -> None:
    """Refuse a file with missing strips or tiles, because they would become black."""
    counts = page.databytecounts
    ends = [start + n for start, n in zip(page.dataoffsets, counts, strict=False)]
    if max(ends, default=0) > n_bytes or 0 in counts or len(ends) < math.prod(page.chunked):
        raise layout.failure()


def _shape(layout: TiffLayout, samples: NDArray[Any]) -> tuple[int, ...]:
    """Return the shape of the first picture: (S, H, W) with separate planes, else (H, W, S)."""
    size, n = (layout.height, layout.width), layout.n_samples
    if samples.size != layout.height * layout.width * n:
        raise layout.refusal()
    return (n, *size) if layout.separate else (*size, n)


def _picture(
    samples: NDArray[Any], layout: TiffLayout, n_colours: int, profile: bytes | None
) -> tuple[Image.Image, list[str]]:
    """Convert samples (H, W, S) to an eight-bit picture."""
    colours = samples[..., :n_colours]
    warnings = []
    scale = scale_of(samples.dtype, *extremes(colours))
    eight = colours if samples.dtype == np.uint8 else scale(colours)
    if samples.dtype != np.uint8:
        warnings.append(scale.warning)
    if layout.photometric == _WHITE_IS_ZERO:
        eight = 255 - eight
    alpha = None
    if layout.n_samples > n_colours:
        if layout.extra[:1] in {(1,), (2,)} and layout.photometric != _SEPARATED:
            alpha = _alpha(samples[..., n_colours])
        else:
            warnings.append("Channels that are not colours were ignored.")
    if alpha is not None and layout.extra[0] == 1:
        whole = eight * (255 / np.maximum(alpha, 1))[..., None]
        eight = whole.clip(0, 255).round().astype(np.uint8)
    mode = {1: "L", 3: "RGB", 4: "CMYK"}[n_colours]
    bands = [Image.fromarray(np.ascontiguousarray(eight[..., one])) for one in range(n_colours)]
    if alpha is not None:
        bands.append(Image.fromarray(alpha))
        mode += "A"
    picture = Image.merge(mode, bands)
    if profile:
        picture.info["icc_profile"] = bytes(profile)
    picture.getexif()[0x0112] = layout.orientation
    return picture, warnings


def _alpha(values: NDArray[Any]) -> NDArray[np.uint8]:
    top = 1.0 if values.dtype.kind == "f" else float(np.iinfo(values.dtype).max)
    scaled = np.nan_to_num(values.astype(np.float32)) * np.float32(255 / top)
    return np.ascontiguousarray(scaled.clip(0, 255).round().astype(np.uint8))
