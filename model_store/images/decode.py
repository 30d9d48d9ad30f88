"""Decodes the bytes of an image; defines the accepted formats, and limits on content and cost.

In a separate process, the kernel enforces the limits on the cost.
"""

from __future__ import annotations

import io
import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256

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
from model_store.images.colours import (
    CONVERTED,
    TRANSPOSED,
    TURNED,
    orientation,
    statement_of,
    upright_rgb,
)
from model_store.images.containers import (
    Content,
    begins_late,
    content_of,
    count_frames,
    format_of,
    last_scan,
    text_in_place_of_image,
    unread_jpeg,
    webp_canvas,
    without_damaged_text,
)
from model_store.images.tiff import TiffLayout, decode_tiff, tiff_layout

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Accepted formats. Pillow supports about forty more formats, but most of these formats only
increase the attack surface."""

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}
)
"""File name suffixes of the accepted formats. The format of a file is read from its content."""

RAW_SUFFIXES = frozenset(
    {".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".orf", ".rw2", ".raf"}
    | {".pef", ".srw", ".raw", ".3fr", ".fff", ".iiq", ".rwl", ".mrw", ".x3f", ".erf", ".kdc"}
)
"""File name suffixes of cameras' raw images. Many of these files begin like TIFF."""

_END, _FILLER = b"\xff\xd9", b"\x5a\xc3" * 2000
"""The end marker of a JPEG, and filler bytes that decode to visible pixels."""

_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_RUN = 16
"""Number of equal bytes at the end of a JPEG that may be padding in place of lost data."""

_STRIP = 64
"""Number of rows of pixels to hash at a time."""

_MENDED = "A damaged part of the file was ignored; it contains no pixels."
_FLAT = "The picture has only one colour."
_NEARLY_BLACK = 16
"""Number of 8-bit levels that remain if 16-bit samples use at most 12 bits."""

_ALMOST_BLACK = (
    "The picture is nearly black: its 16-bit samples hold values of at most 12 bits. Save it with "
    "8 bits per channel, or with samples that use all 16 bits."
)

TOO_MUCH_MEMORY = (
    "Decoding the image takes more memory than the limit. Use a smaller image, or a simpler kind "
    "of file (a baseline JPEG)."
)


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """The limits of an image. The limits are checked before pixels are decoded.

    Attributes
    ----------
    max_bytes : maximum size of the file.
    max_pixels : maximum of width × height. 40 million pixels is the full resolution of a current
        phone.
    max_frames : maximum number of frames or pages. Only the first frame is used, but a file with
        very many frames is probably an attack.
    """

    max_bytes: int = 20 * 2**20
    max_pixels: int = 40_000_000
    max_frames: int = 1000


@dataclass(frozen=True, slots=True)
class DecodingBudget:
    """The limits on the cost of decoding one image.

    Attributes
    ----------
    cpu_s : seconds of CPU time. A limit on wall-clock time would depend on other processes of the
        machine.
    memory_bytes : maximum additional bytes, beyond the mapped memory of an idle decoder.
    clock_s : seconds of wall-clock time; only a decoder that is stopped or gets no CPU exceeds this
        limit.
    """

    cpu_s: float = 5.0
    memory_bytes: int = 2**30
    clock_s: float = 60.0


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """A decoded image, ready for the encoder's preprocessing.

    Attributes
    ----------
    pixels : (H, W, 3) uint8, RGB, upright.
    format : the format found in the bytes.
    width, height : size of the upright picture in the file. With reduced decoding, ``pixels`` have
        a smaller size than the picture in the file.
    warnings : sentences about changed or ignored parts of the file.
    """

    pixels: NDArray[np.uint8]
    format: str
    width: int
    height: int
    warnings: tuple[str, ...]

    @property
    def losses(self) -> tuple[str, ...]:
        """The warnings about lost information: ignored parts, or irreversibly changed values.

        The warning that an orientation was applied is left out, because no information is lost. A
        warning about a colour conversion that the file requires is also left out.
        """
        flat = (_FLAT,) if (self.pixels == self.pixels[:1, :1]).all() else ()
        kept = (one for one in self.warnings if one != TURNED and not one.startswith(CONVERTED))
        return (*kept, *flat)


def decode_image(
    data: bytes, limits: ImageLimits | None = None, smallest_side: int | None = None
) -> DecodedImage:
    """Decode an image file.

    Sixteen-bit images are rescaled to eight bits. Transparent areas become white. Colours are
    converted from the file's profile to sRGB, and the EXIF orientation is applied. Only the first
    frame of an animation is kept. Each of these changes adds a sentence to ``warnings``.

    Parameters
    ----------
    smallest_side : minimum side in pixels for reduced decoding, see `Preprocessing.smallest_side`.
        A JPEG may be decoded at 1/2, 1/4 or 1/8 of its size if no side becomes smaller than the
        minimum. For a photograph of 12 megapixels, reduced decoding takes a fifth of the time. None
        for full decoding.

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
    """Refuse a file that is empty or too large, without reading its content.

    Raises
    ------
    EmptyImage, ImageTooLarge
    """
    if not data:
        raise EmptyImage("The file is empty (0 bytes). Use one image file.")
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(
            f"The image has {len(data):,} bytes; at most {limits.max_bytes:,} are accepted. "
            "Use a smaller or more compressed image."
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
            if image.format in {"GIF", "TIFF"}:
                n_frames = count_frames(data, limits.max_frames)
            else:
                n_frames = getattr(image, "n_frames", 1)  # found in the header
            _check_frames(n_frames, limits, warnings)
            if layout is not None and layout.page:
                image.seek(layout.page)
                _check_pixels(image.size, limits)
                warnings.append(
                    f"The picture is page {layout.page + 1}; earlier pages are previews."
                )
            size = image.size
            is_turned = announced == "TIFF" and orientation(image) is not None
            image = _loaded(image, data, smallest_side, warnings)
            deep = _deeper(image, data, layout, warnings)
            if is_turned and deep is image:
                warnings.append(TURNED)  # Pillow turns a TIFF upright in load()
            image = deep
        pixels, changes = upright_rgb(image, statement_of(image, data))
        if image.size != size:
            width, height = size[::-1] if orientation(image) in TRANSPOSED else size
        else:
            height, width = pixels.shape[:2]
    except (MemoryError, ImageError):
        raise
    except Exception as error:  # damaged data can raise any exception in Pillow
        raise _corrupt(data, error) from error
    return DecodedImage(pixels, announced, width, height, (*warnings, *changes))


def _announced(data: bytes) -> str:
    """Return the format that the first bytes indicate; refuse unsupported kinds."""
    announced = format_of(data)
    content = content_of(data)
    if announced is None or content is not None:
        raise _unsupported(data, content)
    if announced == "JPEG" and (kind := unread_jpeg(data)) is not None:
        raise UnsupportedImage(
            f"This kind of JPEG is not supported: {kind}. Save it as a baseline or progressive "
            "JPEG with 8 bits, or as PNG."
        )
    return announced


def _loaded(
    image: Image.Image, data: bytes, smallest_side: int | None, warnings: list[str]
) -> Image.Image:
    """Decode a picture; accept a JPEG if only its end marker is missing."""
    if image.format not in {"JPEG", "MPO"}:
        image.load()
        return _with_deep_key(image, data)

    try:
        _draft(image, smallest_side)
        image.load()
    except OSError as error:
        if "truncated" not in str(error):
            raise
    else:  # Pillow needs no end marker if other bytes follow the pixels
        if not data.endswith(data[-1:] * _RUN) or last_scan(data) is None:
            return image
    image.close()  # releases its memory
    data = data.rstrip(b"\xff")
    if not _is_whole(data):
        raise OSError("pixels are missing")
    warnings.append("The end of the file is missing; the picture is whole.")
    image = _jpeg(data + _END)
    _draft(image, smallest_side)
    image.load()
    return image


def _with_deep_key(image: Image.Image, data: bytes) -> Image.Image:
    """Add alpha to a 16-bit RGB PNG with a transparent colour.

    Pillow keeps only the upper bytes of the samples. With another raw mode, it keeps the lower
    bytes.
    """
    key = image.info.get("transparency")
    if image.info.get("bit_depth") != 16 or image.mode != "RGB" or key is None:
        return image
    lower = Image.open(io.BytesIO(data), formats=("PNG",))
    lower.tile = [one._replace(args="RGB;16L") for one in lower.tile]
    samples = np.asarray(image).astype(np.uint16) << 8 | np.asarray(lower)
    alpha = np.where((samples == key).all(axis=-1), 0, 255).astype(np.uint8)
    image.putalpha(Image.fromarray(alpha))
    del image.info["transparency"]
    return image


def _is_whole(data: bytes) -> bool:
    """Return whether a JPEG lacks only its end marker.

    If equal bytes at the end replace lost data, the decoder usually reads only some of them.
    """
    if not _has_all_pixels(data):
        return False
    run = _run_at_end(data)
    begun = data[: len(data) - run + _RUN // 2]  # the picture's own data may end with such bytes
    return run < _RUN or _has_all_pixels(begun) or not _has_all_pixels(data[:-_RUN])


def _run_at_end(data: bytes) -> int:
    """Return the number of equal bytes at the end."""
    return len(data) - len(data.rstrip(data[-1:]))


def _has_all_pixels(data: bytes) -> bool:
    """Return whether bytes after the end of a JPEG's data do not change the picture.

    The first filler bytes continue an interval that is cut. The others begin the next interval.
    """
    data = data.rstrip(b"\xff")
    start = last_scan(data)
    if start is None:
        return False
    restarts = _RESTART.findall(data, start)
    number = (restarts[-1][1] + 1) % 8 if restarts else 0
    filler = _FILLER + bytes([0xFF, 0xD0 + number]) + _FILLER
    return _digest(data + _END) == _digest(data + filler + _END)


def _digest(data: bytes) -> bytes:
    """Return the hash of a JPEG's pixels; it reads strips, to need little memory."""
    image, digest = _jpeg(data), sha256()
    for top in range(0, image.height, _STRIP):
        bottom = min(top + _STRIP, image.height)
        digest.update(image.crop((0, top, image.width, bottom)).tobytes())
    return digest.digest()


def _jpeg(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=("JPEG",))
    image.decodermaxblock = len(data)
    return image


def _deeper(
    image: Image.Image, data: bytes, layout: TiffLayout | None, warnings: list[str]
) -> Image.Image:
    """Check for 16-bit samples that use at most 12 bits; decode the picture again, or warn.

    Pillow keeps only the upper byte of 16-bit RGB, so such a picture would be nearly black.
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
        except (UnsupportedImage, MemoryError):  # only Pillow reads the file, or it is large
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
    """Read only the header, and check the limits of the image."""
    if format_of(data) == "WEBP":
        _check_pixels(webp_canvas(data) or (1, 1), limits)
    if Image.MAX_IMAGE_PIXELS is not None and limits.max_pixels > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limits.max_pixels  # else Pillow would refuse it
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageTooLarge(
            f"The image has far more than {limits.max_pixels:,} pixels. Use a smaller image."
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # damaged data can raise any exception in Pillow
        raise _corrupt(data, error) from error
    _check_pixels(image.size, limits)
    if image.format in {"JPEG", "MPO"}:
        image.decodermaxblock = len(data)  # arithmetic coding must be read in one block
    if image.format == "PNG" and len(data) > 24:
        image.info["bit_depth"] = data[24]  # in the PNG header
    return image


def _check_pixels(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if width * height > limits.max_pixels:
        raise ImageTooLarge(
            f"The image is {width} × {height} = {width * height:,} pixels; at most "
            f"{limits.max_pixels:,} are accepted. Use a smaller image."
        )
    if width < 1 or height < 1:
        raise CorruptImage(f"The image is {width} × {height}: it has no pixels.")


def _check_frames(n_frames: int, limits: ImageLimits, warnings: list[str]) -> None:
    """Refuse an image with too many frames or pages; warn about more than one frame or page."""
    if n_frames > 1:
        warnings.insert(0, "The image is animated or has several pages; only the first was used.")
    if n_frames > limits.max_frames:
        raise ImageTooLarge(
            f"The image has more than {limits.max_frames:,} frames or pages, but only the first is "
            "used. Use only the first."
        )


def _unsupported(data: bytes, content: Content | None) -> UnsupportedImage:
    accepted = f"Accepted: {', '.join(FORMATS)}."
    content = content or text_in_place_of_image(data)
    if content is None:
        begin = begins_late(data)
        said = (
            ""
            if begin is None
            else f" An image follows after {begin} other bytes. Remove these bytes."
        )
        return UnsupportedImage(
            f"The {len(data):,} bytes of the file are not an image in an accepted format.{said} "
            f"{accepted}"
        )
    advice = "Convert it to JPEG or PNG." if content.is_image else content.advice
    return UnsupportedImage(
        f"The file is not supported: it is {content.name}. {accepted} {advice}".strip()
    )


def _corrupt(data: bytes, error: Exception) -> ImageError:
    layout = tiff_layout(data) if format_of(data) == "TIFF" else None
    if layout is not None:
        return layout.failure()
    if "nsupported" in str(error):  # a valid file of an unsupported kind
        return UnsupportedImage(
            f"This kind of {format_of(data)} is not supported: {error}. Save it as PNG or JPEG."
        )
    return CorruptImage(
        f"The {format_of(data)} image is damaged or truncated and cannot be decoded. "
        "Use a complete file."
    )


@contextmanager
def spending(budget: DecodingBudget) -> Iterator[None]:
    """Limit the cost of a block.

    If the block needs too much memory, `MemoryError` is raised. If the block uses too much CPU
    time, the process ends. The kernel measures the CPU time, and ends the process with SIGPROF. A
    parser cannot prevent this.
    """
    signal.setitimer(signal.ITIMER_PROF, budget.cpu_s)
    _limit_memory(budget.memory_bytes)
    try:
        yield
    finally:
        _limit_memory(None)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _limit_memory(spare_bytes: int | None) -> None:
    """Limit the additional memory that this process can map; None removes the limit.

    Only Linux reports mapped memory. On other systems, only the limits on bytes and pixels apply.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if spare_bytes is None:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    elif (mapped := _mapped()) is not None:
        pages = int(os.pread(mapped, 100, 0).split()[0])
        soft = pages * resource.getpagesize() + spare_bytes
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@lru_cache(maxsize=1)
def _mapped() -> int | None:
    """Open the Linux file that reports this process's mapped memory; None on other systems.

    The file stays open, because the decoding process may have no permission to open files.
    """
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
