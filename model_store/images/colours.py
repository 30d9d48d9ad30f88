"""Conversion of any decoded frame to upright 8-bit RGB, from the colour space that it states.

Large images are converted in strips, because complete intermediate images would need several times
the memory of the result. Strips are possible, because each conversion works pixel by pixel.
"""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TiffImageFile

from model_store.images.tiff import COLOUR_TAGS, Scale, extremes, scale_of

Curve = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""A function that converts the values of a channel (0 to 1) to linear light; 1 is paper white."""

Primaries = tuple[tuple[float, float], ...]
"""Chromaticities (x, y) of red, green, blue and white."""

_D65 = (0.3127, 0.3290)
_SRGB: Primaries = ((0.64, 0.33), (0.30, 0.60), (0.15, 0.06), _D65)
_ADOBE_RGB: Primaries = ((0.64, 0.33), (0.21, 0.71), (0.15, 0.06), _D65)
_PRIMARIES: Mapping[int, Primaries] = {
    1: _SRGB,
    9: ((0.708, 0.292), (0.170, 0.797), (0.131, 0.046), _D65),
    11: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060), (0.314, 0.351)),
    12: ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060), _D65),
}
"""Primaries of ITU-T H.273: BT.709, BT.2020, DCI-P3 and Display P3."""

_WHITE_CD = 203.0
"""Luminance of white in HDR pictures in cd/m² (ITU-R BT.2408). Brighter parts are clipped."""

_N_SAMPLES = 1024
"""Number of samples of a curve in an ICC profile."""

_NO_PROFILE = (np.linalg.LinAlgError, ValueError, ZeroDivisionError, OverflowError, struct.error)
"""Errors that are raised for invalid curves, and for primaries that span no colour space."""

_SAME_CURVE = 0.04
"""Maximum difference in linear light between sRGB and a curve that is treated as sRGB, for example
a gamma of 2.2."""

_USUAL_GAMMA = 1 / 2.2
"""The gamma that many programs write into an sRGB PNG."""

BROKEN_PROFILE = "The colour profile in the file cannot be used and was ignored."
IGNORED = "The colour space that the file states cannot be used and was ignored."
UNKNOWN = "The file states that its colours are not sRGB, but does not name their colour space."


@dataclass(frozen=True, slots=True)
class ColourStatement:
    """The colour space that a file states without an ICC profile.

    Attributes
    ----------
    name : name of the colour space, for messages; empty if the statement cannot be used.
    profile : equivalent ICC profile; None if the colours are sRGB or unknown.
    warning : one sentence for the user, or empty.
    """

    name: str = ""
    profile: bytes | None = None
    warning: str = ""

    @property
    def is_stronger(self) -> bool:
        """True if the statement has priority over an ICC profile in the same file."""
        return self.name.endswith("(cICP)")


_SRGB_STATEMENT = ColourStatement("sRGB")


def statement_of(image: Image.Image, data: bytes) -> ColourStatement:
    """Return the colour space that a file states in addition to an ICC profile."""
    chunks = dict(png_chunks(data)) if image.format == "PNG" else {}
    found = _of_png(chunks) if chunks else None
    if found is None and image.format == "BMP":
        found = _of_bmp(data)
    elif found is None:
        tags = image.tag_v2 if isinstance(image, TiffImageFile) else image.info.get("tiff_colours")
        found = (_of_tiff(tags) if tags else None) or _of_exif(image)
    if found.profile or image.info.get("icc_profile"):
        return found
    # The file may have an ICC profile, maybe incomplete, that Pillow could not read.
    lost = b"iCCP" in chunks
    if isinstance(image, JpegImageFile):
        lost = any(content.startswith(b"ICC_PROFILE\0") for _, content in image.applist)
    return replace(found, warning=BROKEN_PROFILE) if lost else found


def png_chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and the content of each PNG chunk about colours that precedes the pixels."""
    place, n_chunks = 8, 0
    while place + 8 <= len(data) and n_chunks < 1000:
        (length,) = struct.unpack_from(">I", data, place)
        kind = data[place + 4 : place + 8]
        if kind == b"IDAT":
            return
        if kind in {b"IHDR", b"cICP", b"sRGB", b"gAMA", b"cHRM", b"iCCP"}:
            yield kind, data[place + 8 : place + 8 + min(length, 64)]
        place += 12 + length
        n_chunks += 1


def _of_png(chunks: Mapping[bytes, bytes]) -> ColourStatement | None:
    """Read the colour space from cICP, else sRGB, else gAMA and cHRM; None without these."""
    if len(chunks.get(b"cICP", b"")) >= 4:
        return _of_code_points(*chunks[b"cICP"][:4])
    if b"sRGB" in chunks:
        return _SRGB_STATEMENT
    gamma, primaries = _USUAL_GAMMA, _SRGB
    if len(chunks.get(b"gAMA", b"")) == 4:
        gamma = struct.unpack(">I", chunks[b"gAMA"])[0] / 100_000
    elif b"cHRM" not in chunks:
        return None
    if len(chunks.get(b"cHRM", b"")) == 32:
        white_x, white_y, *rest = (one / 100_000 for one in struct.unpack(">8I", chunks[b"cHRM"]))
        primaries = (*zip(rest[::2], rest[1::2], strict=True), (white_x, white_y))
    same = np.abs(np.array(primaries) - np.array(_SRGB)).max() < 0.01
    if same and abs(gamma - _USUAL_GAMMA) < 0.01:
        return _SRGB_STATEMENT
    if not 0.2 <= gamma <= 2:
        return ColourStatement(warning=IGNORED)
    return _stated(f"gamma {gamma:g} (gAMA)", primaries, "power", gamma)


def _of_tiff(tags: Mapping[int, Any]) -> ColourStatement | None:
    """Read transfer function, white point and primaries; None if they are missing or are sRGB."""
    transfer, white, primaries = (tags.get(tag) for tag in COLOUR_TAGS)
    if not transfer and not primaries:
        return None
    try:
        points = [float(one) for one in (*(primaries or ()), *(white or _D65))]
        stated = (*zip(points[::2], points[1::2], strict=True),)
        stated = stated if primaries else (*_SRGB[:3], *stated)
        same = np.abs(np.array(stated) - np.array(_SRGB)).max() < 0.01
        if not transfer:
            return None if same else _stated("the primaries of the TIFF", stated, "srgb", 0.0)
        # There is one curve for all channels, or one for each channel. Only the first curve is
        # used.
        n_values = len(transfer)
        n_values //= 1 if n_values & (n_values - 1) == 0 else 3
        table = np.array(transfer[:n_values], dtype=float) / 65_535
        places = np.linspace(0, 1, n_values)
        if same and np.abs(table - _srgb(places)).max() < _SAME_CURVE:
            return None
        profile = matrix_profile(stated, lambda values: np.interp(values, places, table))
    except (*_NO_PROFILE, TypeError):
        return ColourStatement(warning=IGNORED)
    return ColourStatement("the transfer function of the TIFF", profile)


def _of_code_points(primaries: int, transfer: int, matrix: int, full_range: int) -> ColourStatement:
    """Read the code points of ITU-T H.273."""
    curves = {1: "video", 4: "2.2", 5: "2.8", 6: "video", 8: "linear", 13: "srgb", 14: "video"}
    curves |= {15: "video", 16: "pq", 18: "hlg"}
    if (primaries, transfer, full_range) == (1, 13, 1) and matrix == 0:
        return ColourStatement("sRGB (cICP)")
    if primaries not in _PRIMARIES or transfer not in curves or matrix or full_range > 1:
        return ColourStatement(warning=IGNORED)
    kind = curves[transfer] if full_range else f"{curves[transfer]} narrow"
    name = f"primaries {primaries}, transfer {transfer} (cICP)"
    return _stated(name, _PRIMARIES[primaries], kind, 0.0)


def _of_exif(image: Image.Image) -> ColourStatement:
    """Read the colour space in EXIF. For Adobe RGB, cameras write R03 without an ICC profile."""
    try:
        exif = image.getexif()
        space = exif.get_ifd(0x8769).get(0xA001)
        interoperability = exif.get_ifd(0xA005).get(1) or exif.get_ifd(0x8769).get(0xA005)
        if isinstance(interoperability, dict):
            interoperability = interoperability.get(1)
    except MemoryError:
        raise
    except Exception:  # damaged data can raise any exception in Pillow
        return ColourStatement()
    if isinstance(interoperability, bytes):
        interoperability = interoperability.decode(errors="replace")
    is_r03 = str(interoperability).startswith("R03")
    if space == 2 or (is_r03 and space != 1):
        return _stated("Adobe RGB (EXIF)", _ADOBE_RGB, "power", 256 / 563)
    return ColourStatement(warning=UNKNOWN if space == 0xFFFF else "")


def _of_bmp(data: bytes) -> ColourStatement:
    """Read the colour space in the header of a BMP, version 4 or 5."""
    size = int.from_bytes(data[14:18], "little")
    if size < 108 or len(data) < 14 + size:
        return ColourStatement()
    space = data[70:74][::-1]
    if space == b"MBED" and size >= 124:
        start, length = struct.unpack_from("<II", data, 126)
        profile = data[14 + start : 14 + start + length]
        return ColourStatement("", profile or None)
    ends = struct.unpack_from("<9i", data, 74)
    if space == b"\0\0\0\0" and any(ends):
        return ColourStatement(warning=UNKNOWN)
    return ColourStatement(warning=UNKNOWN if space == b"LINK" else "")


@functools.lru_cache(maxsize=32)
def _stated(name: str, primaries: Primaries, kind: str, gamma: float) -> ColourStatement:
    try:
        return ColourStatement(name, matrix_profile(primaries, _curve(kind, gamma)))
    except _NO_PROFILE:
        return ColourStatement(warning=IGNORED)


def _curve(kind: str, gamma: float) -> Curve:
    """Return the curve with the name ``kind``.

    A name that ends with "narrow" is a curve for channel values from 16 to 235 instead of 0 to 255.
    """
    if kind.endswith(" narrow"):
        full = _curve(kind.removesuffix(" narrow"), gamma)
        return lambda values: full(((values * 255 - 16) / 219).clip(0, 1))
    curves: dict[str, Curve] = {
        "power": lambda values: values ** (1 / gamma),
        "2.2": lambda values: values**2.2,
        "2.8": lambda values: values**2.8,
        "linear": lambda values: values,
        "srgb": _srgb,
        "video": _srgb,  # as on a BT.1886 display in a dim room
        "pq": lambda values: _pq(values) / _WHITE_CD,
        "hlg": lambda values: 1000 / _WHITE_CD * _hlg(values) ** 1.2,
    }
    return curves[kind]


def _srgb(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """IEC 61966-2-1."""
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _pq(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """SMPTE ST 2084: cd/m²."""
    m1, m2 = 2610 / 16_384, 2523 / 32
    c1, c2, c3 = 3424 / 4096, 2413 / 128, 2392 / 128
    powers = values ** (1 / m2)
    light: NDArray[np.float64] = (np.maximum(powers - c1, 0) / (c2 - c3 * powers)) ** (1 / m1)
    return 10_000 * light


def _hlg(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert HLG values to scene light from 0 to 1 (ITU-R BT.2100)."""
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    return np.where(values <= 0.5, values**2 / 3, (np.exp((values - c) / a) + b) / 12)


def matrix_profile(primaries: Primaries, curve: Curve) -> bytes:
    """Return an ICC profile, version 2.4, with the given primaries and curve.

    Raises
    ------
    ValueError, ZeroDivisionError, numpy.linalg.LinAlgError : the primaries span no colour space.
    """
    columns = np.array([[x / y, 1, (1 - x - y) / y] for x, y in primaries]).T
    white = columns[:, 3]
    matrix = columns[:, :3] * np.linalg.solve(columns[:, :3], white)
    matrix = _adapted(white) @ matrix
    if not np.isfinite(matrix).all() or np.abs(matrix).max() > 4:
        raise ValueError("no primaries")
    light = curve(np.linspace(0, 1, _N_SAMPLES)).clip(0, 1)
    table = struct.pack(f">I{_N_SAMPLES}H", _N_SAMPLES, *(light * 65_535).round().astype(int))
    tags = {b"wtpt": _xyz(_D50)}
    for place, name in enumerate((b"r", b"g", b"b")):
        tags[name + b"XYZ"] = _xyz(matrix[:, place])
        tags[name + b"TRC"] = b"curv\0\0\0\0" + table
    directory, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        directory += name + struct.pack(">II", start + len(body), len(content))
        body += content + b"\0" * (-len(content) % 4)
    header = struct.pack(">I4sI4s4s4s", start + len(body), b"\0" * 4, 0x02400000, b"mntr",
                         b"RGB ", b"XYZ ")  # fmt: skip
    header += b"\0" * 12 + b"acsp" + b"\0" * 28 + _xyz(_D50)[8:]
    return header.ljust(128, b"\0") + directory + body


_D50 = np.array([0.9642, 1.0, 0.8249])
_BRADFORD = np.array(
    [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
)


def _adapted(white: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Bradford matrix, which adapts colours from ``white`` to D50."""
    ratio = (_BRADFORD @ _D50) / (_BRADFORD @ white)
    adapted: NDArray[np.float64] = np.linalg.solve(_BRADFORD, np.diag(ratio) @ _BRADFORD)
    return adapted


def _xyz(values: NDArray[np.float64]) -> bytes:
    return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(float(one) * 65_536) for one in values))


_STRIP_PIXELS = 2**20
_EXTRA_SAMPLES = 338

TURNED = "The orientation stored in the file was applied."
CONVERTED = "The colours were converted from"
"""Beginning of the warning about a colour conversion that the file requires."""

_UPRIGHT: dict[int, Callable[[NDArray[np.uint8]], NDArray[np.uint8]]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: np.rot90,
}
"""The operation that turns an image upright, for each EXIF orientation."""

TRANSPOSED = frozenset({5, 6, 7, 8})
"""EXIF orientations that exchange width and height."""

_Step = Callable[[Image.Image], Image.Image]


def orientation(image: Image.Image) -> int | None:
    """Return the EXIF orientation of a picture; None if it is upright, or EXIF is unreadable.

    A picture with unreadable EXIF is accepted, because some cameras write broken EXIF.
    """
    try:
        value = image.getexif().get(0x0112)
    except MemoryError:
        raise
    except Exception:  # damaged data can raise any exception in Pillow
        return None
    return value if isinstance(value, int) and value in _UPRIGHT else None


def upright_rgb(
    image: Image.Image, statement: ColourStatement | None = None
) -> tuple[NDArray[np.uint8], list[str]]:
    """Convert a loaded frame to upright RGB (H, W, 3); return the pixels and warnings.

    Parameters
    ----------
    statement : colour space that the file states in addition to an ICC profile.
    """
    warnings: list[str] = []
    pixels = _rgb(image, _steps(image, statement or ColourStatement(), warnings))
    turned = orientation(image)
    if turned is not None:
        warnings.insert(0, TURNED)
        pixels = np.ascontiguousarray(_UPRIGHT[turned](pixels))
    return pixels, warnings


def _steps(image: Image.Image, statement: ColourStatement, warnings: list[str]) -> list[_Step]:
    """Return the ordered steps that convert a strip of ``image`` to RGB."""
    steps: list[_Step] = []
    mode = image.mode
    is_deep = mode.startswith(("I", "F"))
    key = _transparent_value(image)
    is_transparent = _is_transparent(image, key)
    if is_deep:
        scale = _scale(image)
        warnings.append(scale.warning)
        steps.append(_eight_bits_on_white(scale, key) if key is not None else _eight_bits(scale))
        mode = "L"
    elif is_transparent:
        steps.append(_on_white if key is None else _key_on_white(key))
        mode = "RGB"
    elif mode in {"CMYK", "LAB"}:
        warnings.append("The print colours were converted to screen colours.")
    elif mode not in {"RGB", "L"}:
        steps.append(lambda strip: strip.convert("RGB"))
        mode = "RGB"
    if is_transparent:
        warnings.append("Transparent areas were made white.")
    else:
        image.info.pop("transparency", None)  # Pillow would warn about it
    return steps + _colour_steps(image, mode, statement, warnings)


def _colour_steps(
    image: Image.Image, mode: str, statement: ColourStatement, warnings: list[str]
) -> list[_Step]:
    """Return the ordered steps that convert the file's colours, in ``mode``, to sRGB."""
    steps: list[_Step] = []
    profile = image.info.get("icc_profile")
    name = ""
    if statement.is_stronger or not profile:
        profile, name = statement.profile, statement.name
        if statement.warning:
            warnings.append(statement.warning)
        if profile and mode == "L":
            steps.append(lambda strip: strip.convert("RGB"))
            mode = "RGB"
    elif image.mode in {"1", "LA", "La"}:
        steps.append(lambda strip: strip.convert("L"))
        mode = "L"
    if profile:
        try:
            convert = to_srgb(profile, mode)
        except BrokenProfile:
            warnings.append(BROKEN_PROFILE)
        else:
            if convert is not None:
                steps.append(convert)
                if mode in {"RGB", "L"}:
                    warnings.append(
                        f"The colours were converted from {name} to sRGB."
                        if name
                        else "The colours were converted from the file's profile to sRGB."
                    )
    return steps


def _is_transparent(image: Image.Image, key: tuple[int, ...] | None) -> bool:
    """Return whether a pixel of the picture is transparent, wholly or partly."""
    if key is None and (image.mode.startswith(("I", "F")) or not _has_alpha(image)):
        return False
    strips = (strip for _, strip in _strips(image))
    if key is not None:
        return any(_is_key(strip, key).any() for strip in strips)
    alphas = (strip.convert("RGBA").getchannel("A") for strip in strips)
    return any(alpha.getextrema() != (255, 255) for alpha in alphas)


def _has_alpha(image: Image.Image) -> bool:
    """Return whether a picture has alpha or a transparent colour.

    A BMP is opaque if its alpha is zero everywhere, because programs without support for alpha
    write such files. A TIFF is opaque if the meaning of its fourth channel is not declared.
    """
    is_declared = image.format != "BMP" and not (
        isinstance(image, TiffImageFile) and _EXTRA_SAMPLES not in image.tag_v2
    )
    if image.mode == "RGBA" and not is_declared:
        return image.getchannel("A").getextrema() != (0, 0)
    return image.mode in {"RGBA", "LA", "PA", "RGBa", "La"} or "transparency" in image.info


def _transparent_value(image: Image.Image) -> tuple[int, ...] | None:
    """Return a PNG's transparent grey or colour, at the bit depth of the pixels; None if missing.

    The file stores the transparent value in the depth of the file: 1 to 16 bits. Pillow's pixels
    have 8 bits, or 16 bits for greys. A colour of 16 bits was already compared, see `decode`.
    """
    value = image.info.get("transparency")
    is_grey = image.mode in {"1", "L"} or image.mode.startswith("I")
    if image.format != "PNG" or not (is_grey or image.mode == "RGB"):
        return None
    values = (value,) if isinstance(value, int) else value
    if not isinstance(values, tuple) or not all(isinstance(one, int) for one in values):
        return None
    depth = int(image.info.get("bit_depth", 8))
    if depth < 8 and image.mode == "L":
        return tuple(one * 255 // ((1 << depth) - 1) for one in values)
    return values


def _is_key(strip: Image.Image, key: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return (H, W): whether each pixel has the transparent value."""
    is_deep = strip.mode.startswith("I")
    values = np.asarray(strip)[..., None] if is_deep else np.asarray(strip.convert("RGB"))
    found: NDArray[np.bool_] = (values == key).all(axis=-1)
    return found


def _key_on_white(key: tuple[int, ...]) -> _Step:
    def on_white(strip: Image.Image) -> Image.Image:
        pixels = np.array(strip.convert("RGB"))
        pixels[_is_key(strip, key)] = 255
        return Image.fromarray(pixels)

    return on_white


def _rgb(image: Image.Image, steps: list[_Step]) -> NDArray[np.uint8]:
    """Apply ``steps`` to ``image``, strip by strip."""

    def converted(strip: Image.Image) -> NDArray[np.uint8]:
        for step in steps:
            strip = step(strip)
        return np.asarray(strip if strip.mode == "RGB" else strip.convert("RGB"))

    if image.width * image.height <= _STRIP_PIXELS:
        return converted(image)
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    for top, strip in _strips(image):
        pixels[top : top + strip.height] = converted(strip)
    return pixels


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield (first row, strip) for the strips of ``image``."""
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _on_white(strip: Image.Image) -> Image.Image:
    rgba = strip.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def _scale(image: Image.Image) -> Scale:
    """Return the scale of a picture with more than eight bits per channel.

    Pillow's conversion would clip values, and nearly every pixel of a 16-bit photograph would
    become white.
    """
    found = [extremes(np.asarray(strip)) for _, strip in _strips(image)]
    dtype = np.dtype(np.uint16) if image.mode.startswith("I;16") else np.asarray(image).dtype
    return scale_of(dtype, min(low for low, _ in found), max(high for _, high in found))


def _eight_bits(scale: Scale) -> _Step:
    return lambda strip: Image.fromarray(scale(np.asarray(strip)))


def _eight_bits_on_white(scale: Scale, key: tuple[int, ...]) -> _Step:
    def on_white(strip: Image.Image) -> Image.Image:
        pixels = scale(np.asarray(strip))
        pixels[_is_key(strip, key)] = 255
        return Image.fromarray(pixels)

    return on_white


MAX_PROFILE_BYTES = 4 * 2**20
"""Maximum size of a profile in bytes; a larger profile is treated as broken. The largest real
profiles are for printing presses and have up to 3 MiB."""

_COLOUR_SPACES = {"RGB": "RGB", "L": "GRAY", "CMYK": "CMYK", "LAB": "Lab"}

_SAME = 2
"""Maximum change of 8-bit values by a profile that is treated as sRGB. Variants of the sRGB profile
differ by rounding. A conversion from such a variant would add noise to nearly every photograph."""


class BrokenProfile(Exception):
    """The profile is damaged, too large, or made for another kind of picture."""


def to_srgb(profile: bytes, mode: str) -> Callable[[Image.Image], Image.Image] | None:
    """Return the conversion of images in ``mode`` to sRGB; None if the profile is already sRGB.

    Raises
    ------
    BrokenProfile
    """
    if len(profile) > MAX_PROFILE_BYTES or mode not in _COLOUR_SPACES:
        raise BrokenProfile
    transform = _transform(profile, mode)

    def convert(image: Image.Image) -> Image.Image:
        converted = ImageCms.applyTransform(image, transform)
        if converted is None:
            raise BrokenProfile
        return converted

    return None if mode in {"RGB", "L"} and _is_srgb(convert, mode) else convert


@functools.lru_cache(maxsize=8)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform:
    """Build a transform. All files of a camera have one profile, so transforms are cached."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space.strip() != _COLOUR_SPACES[mode]:
            raise BrokenProfile
        return ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        raise BrokenProfile from error


def _is_srgb(convert: Callable[[Image.Image], Image.Image], mode: str) -> bool:
    """Return whether a conversion leaves a grid of colours or greys almost unchanged."""
    steps = np.arange(0, 256, 17, dtype=np.uint8)
    if mode == "L":
        probe = Image.fromarray(steps[None])
    else:
        cube = np.stack(np.meshgrid(steps, steps, steps), axis=-1)
        probe = Image.fromarray(cube.reshape(len(steps), -1, 3))
    change = np.asarray(convert(probe), dtype=int) - np.asarray(probe.convert("RGB"), dtype=int)
    return bool(np.abs(change).max() <= _SAME)
