"""The accepted image formats, their limits, and the way from an image's bytes to pixels."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from model_store.errors import (
    CorruptImage,
    EmptyImage,
    ImageError,
    ImageTooCostly,
    ImageTooLarge,
    UnsupportedImage,
)
from model_store.images.colours import CONVERTED, TRANSPOSED, TURNED, orientation, upright_rgb
from model_store.images.containers import (
    Content,
    begins_late,
    content_of,
    count_frames,
    format_of,
    text_in_place_of_image,
    unread_jpeg,
    webp_canvas,
    without_damaged_text,
)
from model_store.images.statements import statement_of
from model_store.images.tiff import TiffLayout, decode_tiff, tiff_layout

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Accepted formats. Pillow registers some forty more, most of them attack surface."""

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
)
"""File name suffixes of these formats; the format itself is read from the content."""

RAW_SUFFIXES = frozenset(
    {".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".orf", ".rw2", ".raf"}
    | {".pef", ".srw", ".raw", ".3fr", ".fff", ".iiq", ".rwl", ".mrw", ".x3f", ".erf", ".kdc"}
)
"""File name suffixes of cameras' raw images, many of which begin as TIFF does."""

_END, _FILLER = b"\xff\xd9", b"\x5a\xc3" * 2000
"""The marker at the end of a JPEG; and bytes that look like pixels, and not like no pixels."""

_MENDED = "A damaged part of the file that holds no pixels was left out."
_FLAT = "The picture is of a single colour."
_NEARLY_BLACK = 16
"""Levels of a picture whose samples of 16 bits hold at most 12."""

_ALMOST_BLACK = (
    "The picture is nearly black: its 16-bit samples hold values of at most 12 bits. Save it with "
    "8 bits per channel, or with samples that use all 16."
)

TOO_MUCH_MEMORY = (
    "Decoding the image takes more memory than one image may. Send a smaller image, or a plainer "
    "kind of file (a baseline JPEG)."
)


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """The limits that an image must keep before a single pixel is decoded.

    Attributes
    ----------
    max_bytes : size of the file.
    max_pixels : width × height; 40 million is a current phone's full resolution.
    max_frames : of an animation, or pages. Only the first is used, but a file of very many is made
        to be expensive.
    """

    max_bytes: int = 20 * 2**20
    max_pixels: int = 40_000_000
    max_frames: int = 1000


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """An image as the encoder's preprocessing wants it.

    Attributes
    ----------
    pixels : (H, W, 3) uint8, RGB, upright.
    format : the format found in the bytes.
    width, height : of the picture in the file, after the orientation was applied; reduced decoding
        makes ``pixels`` smaller.
    warnings : what was changed or ignored, one sentence each.
    """

    pixels: NDArray[np.uint8]
    format: str
    width: int
    height: int
    warnings: tuple[str, ...]

    @property
    def losses(self) -> tuple[str, ...]:
        """The warnings of parts that were left out or of values that were changed for good.

        Neither an orientation nor colours that were converted as the file states is one.
        """
        flat = (_FLAT,) if (self.pixels == self.pixels[:1, :1]).all() else ()
        kept = (one for one in self.warnings if one != TURNED and not one.startswith(CONVERTED))
        return (*kept, *flat)


def decode_image(
    data: bytes, limits: ImageLimits | None = None, smallest_side: int | None = None
) -> DecodedImage:
    """Decode an uploaded or indexed file.

    Sixteen-bit images are rescaled to eight, transparency is laid on white, colours go through the
    file's profile where that is not sRGB, EXIF orientation is applied, and only the first frame of
    an animation is kept; each leaves a sentence in ``warnings``.

    Parameters
    ----------
    smallest_side : lets a JPEG be decoded at a half, a quarter or an eighth of its size as long as
        neither side falls below it, which of a photograph of 12 megapixels takes a fifth of the
        time; None for full decoding. See `Preprocessing.smallest_side`.

    Raises
    ------
    EmptyImage, UnsupportedImage, ImageTooLarge, ImageTooCostly, CorruptImage
    """
    limits = limits or ImageLimits()
    check_size(data, limits)
    try:
        try:
            return _decoded(data, limits, smallest_side)
        except CorruptImage:
            mended = without_damaged_text(data)
            if mended is None:
                raise
            decoded = _decoded(mended, limits, smallest_side)
            return replace(decoded, warnings=(*decoded.warnings, _MENDED))
    except MemoryError as error:
        raise ImageTooCostly(TOO_MUCH_MEMORY) from error


def check_size(data: bytes, limits: ImageLimits) -> None:
    """Refuse a file by how many bytes it has, which needs no look at them.

    Raises
    ------
    EmptyImage, ImageTooLarge
    """
    if not data:
        raise EmptyImage("The upload is empty (0 bytes). Send the bytes of one image file.")
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(
            f"The image has {len(data):,} bytes; at most {limits.max_bytes:,} are accepted. "
            "Send a smaller or more compressed image."
        )


def _decoded(data: bytes, limits: ImageLimits, smallest_side: int | None) -> DecodedImage:
    announced = _announced(data)
    layout = tiff_layout(data) if announced == "TIFF" else None
    warnings: list[str] = []
    if layout is not None and layout.is_raw:
        raise layout.refusal()
    try:
        if layout is not None and not layout.is_read_by_pillow:
            _check_pixels((layout.width, layout.height), limits)
            _check_frames(count_frames(data, limits.max_frames), limits, warnings)
            image, changes = decode_tiff(data, layout)
            warnings += changes
            size = image.size
        else:
            image = _open(data, limits)
            _check_frames(_n_frames(image, data, limits), limits, warnings)
            if layout is not None and layout.page:
                image.seek(layout.page)
                _check_pixels(image.size, limits)
                warnings.append(f"The picture is page {layout.page + 1}: before it are previews.")
            size = image.size
            is_turned = announced == "TIFF" and orientation(image) is not None
            image = _loaded(image, data, smallest_side, warnings)
            deep = _deeper(image, data, layout, warnings)
            if is_turned and deep is image:
                warnings.append(TURNED)  # which Pillow does automatically while it loads a TIFF
            image = deep
        pixels, changes = upright_rgb(image, statement_of(image, data))
        if image.size != size:
            width, height = size[::-1] if orientation(image) in TRANSPOSED else size
        else:
            height, width = pixels.shape[:2]
    except (MemoryError, ImageError):
        raise
    except Exception as error:  # Pillow's parsers raise whatever the damage makes them raise
        raise _corrupt(data, error) from error
    return DecodedImage(pixels, announced, width, height, (*warnings, *changes))


def _announced(data: bytes) -> str:
    """Return the format that the first bytes announce; refuse kinds that are not read."""
    announced = format_of(data)
    content = content_of(data)
    if announced is None or content is not None:
        raise _unsupported(data, content)
    if announced == "JPEG" and (kind := unread_jpeg(data)) is not None:
        raise UnsupportedImage(
            f"JPEG of this kind is not read: {kind}. Save it as a baseline or progressive JPEG of "
            "8 bits, or as PNG."
        )
    return announced


def _loaded(
    image: Image.Image, data: bytes, smallest_side: int | None, warnings: list[str]
) -> Image.Image:
    """Decode a picture; a JPEG that lacks nothing but its end is whole."""
    if image.format not in {"JPEG", "MPO"}:
        image.load()
        return image

    def load(content: bytes) -> Image.Image:
        again = Image.open(io.BytesIO(content), formats=("JPEG",))
        _draft(again, smallest_side)
        again.load()
        return again

    try:
        _draft(image, smallest_side)
        image.load()
    except OSError as error:
        if "truncated" not in str(error):
            raise
        # Where pixels are missing, bytes put in their place show in the picture.
        whole = data.rstrip(b"\xff")
        ended, filled = load(whole + _END), load(whole + _FILLER + _END)
        if ended.tobytes() != filled.tobytes():
            raise
        warnings.append("The end of the file is missing; the picture is whole.")
        return ended
    return image


def _deeper(
    image: Image.Image, data: bytes, layout: TiffLayout | None, warnings: list[str]
) -> Image.Image:
    """Return a picture whose 16-bit samples hold fewer bits with these as its range.

    Of 16-bit RGB Pillow keeps the upper byte alone, which is nearly black in 12-bit pictures.
    """
    bits = layout.bits[0] if layout is not None else image.info.get("bit_depth")
    if bits != 16 or image.mode not in {"RGB", "RGBA"}:
        return image
    channels: tuple[tuple[int, int], ...] = image.getextrema()  # type: ignore[assignment]
    if not 0 < max(high for _, high in channels[:3]) < _NEARLY_BLACK:
        return image
    if layout is not None:
        try:
            deep, changes = decode_tiff(data, layout)
        except (UnsupportedImage, MemoryError):  # a compression that only Pillow reads; or large
            pass
        else:
            warnings += changes
            return deep
    warnings.append(_ALMOST_BLACK)
    return image


def _draft(image: Image.Image, smallest_side: int | None) -> None:
    if smallest_side is not None:
        image.draft(None, (smallest_side, smallest_side))


def _open(data: bytes, limits: ImageLimits) -> Image.Image:
    """Read the header only, and refuse by what it says."""
    if format_of(data) == "WEBP":
        _check_pixels(webp_canvas(data) or (1, 1), limits)
    if Image.MAX_IMAGE_PIXELS is not None and limits.max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limits.max_pixels  # or Pillow refuses what is accepted here
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageTooLarge(
            f"The image has far more than {limits.max_pixels:,} pixels. Send a smaller image."
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow's header parsers raise whatever the damage makes them raise
        raise _corrupt(data, error) from error
    _check_pixels(image.size, limits)
    if image.format == "PNG" and len(data) > 24:
        image.info["bit_depth"] = data[24]  # of the header, which begins every PNG
    return image


def _check_pixels(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if width * height > limits.max_pixels:
        raise ImageTooLarge(
            f"The image is {width} × {height} = {width * height:,} pixels; at most "
            f"{limits.max_pixels:,} are accepted. Send a smaller image."
        )
    if width < 1 or height < 1:
        raise CorruptImage(f"The image is {width} × {height}: there are no pixels in it.")


def _n_frames(image: Image.Image, data: bytes, limits: ImageLimits) -> int:
    """Count frames or pages, or one more than are accepted."""
    if image.format in {"GIF", "TIFF"}:
        return count_frames(data, limits.max_frames)
    n_frames: int = getattr(image, "n_frames", 1)  # found in the header
    return n_frames


def _check_frames(n_frames: int, limits: ImageLimits, warnings: list[str]) -> None:
    """Refuse too many frames or pages, and warn of more than one."""
    if n_frames > 1:
        warnings.insert(0, "The image is animated or has several pages; only the first was used.")
    if n_frames > limits.max_frames:
        raise ImageTooLarge(
            f"The image has more than {limits.max_frames:,} frames or pages, and only the first "
            "would be used. Send that one."
        )


def _unsupported(data: bytes, content: Content | None) -> UnsupportedImage:
    accepted = f"Accepted: {', '.join(FORMATS)}."
    content = content or text_in_place_of_image(data)
    if content is None:
        begin = begins_late(data)
        said = (
            ""
            if begin is None
            else f" One begins after {begin} bytes that the program put before it. Remove them."
        )
        return UnsupportedImage(
            f"The {len(data):,} bytes received are not an image in an accepted format.{said} "
            f"{accepted}"
        )
    advice = "Convert it to JPEG or PNG." if content.is_image else content.advice
    return UnsupportedImage(
        f"The file is not read: it is {content.name}. {accepted} {advice}".strip()
    )


def _corrupt(data: bytes, error: Exception) -> ImageError:
    layout = tiff_layout(data) if format_of(data) == "TIFF" else None
    if layout is not None:
        return layout.failure()
    if "nsupported" in str(error):  # a sound file of a kind that Pillow names
        return UnsupportedImage(
            f"{format_of(data)} of this kind is not read: {error}. Save it as PNG or JPEG."
        )
    return CorruptImage(
        f"The {format_of(data)} image is damaged or truncated and cannot be decoded. "
        "Send a complete file."
    )
