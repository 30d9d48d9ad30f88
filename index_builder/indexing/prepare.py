"""Turns image files into the encoder's input.

This module has few imports, because each decoder process loads it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from index_builder.indexing.blocks import (
    Block,
    Box,
    EncodedThumbnail,
    Failure,
    Place,
    PreparedBlock,
)
from model_store.encoder.contract import EncoderInput, Inputs, VectorInput
from model_store.errors import CorruptImage, EmptyImage, ImageError, ImageTooCostly, ImageTooLarge
from model_store.images import (
    TOO_MUCH_MEMORY,
    ImageLimits,
    Preprocessing,
    check_size,
    decode_image,
    encode_preview,
    encode_thumbnail,
)
from model_store.images.decode import DecodingBudget, spending

Prepare = Callable[[Block], PreparedBlock]
"""A function that reads, decodes and resizes the images of a block."""

BUDGET = DecodingBudget(cpu_s=10.0)
"""Limits for one image. The limit of CPU time is twice the limit for a query image, because the
owner of a collection is trusted."""

NO_THUMBNAIL: EncodedThumbnail = b"", ""

_UNLIMITED = ImageLimits(max_bytes=2**62, max_pixels=2**62)


def budget_for(limits: ImageLimits) -> DecodingBudget:
    """Return the limits of time and memory per image; they grow with ``limits.max_pixels``."""
    factor = max(1.0, limits.max_pixels / ImageLimits().max_pixels)
    return DecodingBudget(
        BUDGET.cpu_s * factor, int(BUDGET.memory_bytes * factor), BUDGET.clock_s * factor
    )


@dataclass(frozen=True, slots=True)
class _Picture:
    """The encoder's input for one image or vector, with its thumbnail and preview."""

    image: Inputs
    thumbnail: EncodedThumbnail
    sha256: str
    preview: bytes = b""
    losses: tuple[str, ...] = ()


def prepare_files(
    block: Block,
    preprocessing: Preprocessing,
    budget: DecodingBudget = BUDGET,
    limits: ImageLimits | None = None,
    preview_side: int | None = None,
) -> PreparedBlock:
    """Prepare image files; runs in a process, because an image can crash it."""
    limits = limits or ImageLimits()
    read = partial(
        _read_file,
        preprocessing=preprocessing,
        budget=budget,
        limits=limits,
        preview_side=preview_side,
    )
    reads = [partial(read, place) for place in block.places]
    return _prepared(block, reads, preprocessing)


def prepare_pixels(
    block: Block,
    read: Callable[[int, int | None], Inputs],
    first: int,
    preprocessing: EncoderInput,
    preview_side: int | None = None,
    *,
    is_encoded: bool = False,
) -> PreparedBlock:
    """Prepare decoded images or vectors; see `LabelledImages.pixels`.

    Parameters
    ----------
    first : position of the block's first image among all images.
    is_encoded : whether the embeddings of the block are known. Its `PreparedBlock.images` are then
        zero.
    """
    no_input = np.zeros((), preprocessing.dtype)

    def at(position: int) -> _Picture:
        pixels = read(position, preprocessing.smallest_side)
        sha256 = _sha256(pixels)
        if isinstance(preprocessing, VectorInput):
            return _Picture(preprocessing(pixels), NO_THUMBNAIL, sha256)
        preview = encode_preview(pixels, preview_side, partial(read, position))
        image = no_input if is_encoded else preprocessing(pixels)
        return _Picture(image, encode_thumbnail(pixels), sha256, preview)

    reads = [partial(at, first + place) for place in range(len(block.ids))]
    return _prepared(block, reads, preprocessing)


def prepare_vectors(block: Block, expected: VectorInput) -> PreparedBlock:
    """Prepare vectors from another system; they have no thumbnails."""
    opened: dict[str, BinaryIO] = {}
    with ExitStack() as stack:

        def read(place: Place) -> _Picture:
            if place.path not in opened:
                opened[place.path] = stack.enter_context(Path(place.path).open("rb"))
            row = _vector(opened[place.path], place)
            require_direction(row, expected.dim)
            if expected.with_variance and (row[expected.dim : 2 * expected.dim] < 0).any():
                raise CorruptImage("The variance has negative numbers. Is it a logarithm?")
            return _Picture(row, NO_THUMBNAIL, hashlib.sha256(row.tobytes()).hexdigest())

        return _prepared(block, [partial(read, place) for place in block.places], expected)


_MOST_NORM = 1e15
"""Maximum norm of a vector. Sums of products of longer vectors can exceed the range of float32."""


def require_direction(row: NDArray[np.float32], dim: int) -> None:
    """Raise an error if ``row`` (n,) has a value that is not finite, or an unusable mean.

    The mean is ``row[:dim]``. It may not be zero or longer than ``_MOST_NORM``.

    Raises
    ------
    CorruptImage
    """
    if not np.isfinite(row).all() or not row[:dim].any():
        raise CorruptImage(
            "The vector has numbers that are not finite, or its mean is zero and has no direction."
        )
    if (norm := np.linalg.norm(row[:dim].astype(np.float64))) > _MOST_NORM:
        raise CorruptImage(
            f"The norm of the vector is {norm:.1e}; at most {_MOST_NORM:.0e} is accepted."
        )


def read_vector(place: Place) -> NDArray[np.float32]:
    """Read the vector at a place: (n,) float32."""
    with Path(place.path).open("rb") as file:
        return _vector(file, place)


def _vector(file: BinaryIO, place: Place) -> NDArray[np.float32]:
    file.seek(place.offset or 0)
    return np.frombuffer(file.read(place.size), "<f4")


def failed_block(block: Block, failure: Failure, preprocessing: Preprocessing) -> PreparedBlock:
    """Return the result of a block that crashed its decoder: a failure for each image."""

    def fail() -> _Picture:
        raise ImageTooCostly(failure.reason)

    return _prepared(block, [fail] * len(block.ids), preprocessing)


def _prepared(
    block: Block,
    reads: Sequence[Callable[[], _Picture]],
    expected: EncoderInput,
) -> PreparedBlock:
    """Read all images of a block. The row of a failed image is zero."""
    images = np.zeros((len(block.ids), *expected.shape), dtype=expected.dtype)
    thumbnails: list[EncodedThumbnail | None] = [None] * len(block.ids)
    hashes, previews = [""] * len(block.ids), [b""] * len(block.ids)
    failures: dict[str, Failure] = {}
    losses: dict[str, tuple[str, ...]] = {}
    for row, (name, read) in enumerate(zip(block.ids, reads, strict=True)):
        if name in block.failures:
            failures[name] = block.failures[name]
            continue
        try:
            picture = read()
        except ImageTooLarge as error:  # a later run may have other limits
            failures[name] = Failure(type(error).__name__, str(error), passing=True)
        except ImageError as error:
            failures[name] = Failure(type(error).__name__, str(error))
        except OSError as error:
            failures[name] = unreadable(error)
        else:
            images[row] = picture.image
            thumbnails[row], hashes[row] = picture.thumbnail, picture.sha256
            previews[row] = picture.preview
            if picture.losses:
                losses[name] = picture.losses
    return PreparedBlock(
        block.number,
        block.ids,
        images,
        tuple(thumbnails),
        tuple(hashes),
        failures,
        tuple(previews),
        losses,
    )


NO_IMAGE = Failure("EmptyImage", "The row has no image. Store the bytes of the image in the row.")


def unreadable(error: OSError) -> Failure:
    """Return the failure of an image whose file cannot be read."""
    why = error.strerror or type(error).__name__
    if isinstance(error, FileNotFoundError):
        why = (
            f"there is no {error.filename}. Correct the path, or name the folder of all images "
            "with --root"
        )
    return Failure("Unreadable", f"The file cannot be read: {why}.", passing=True)


def _read_file(
    place: Place,
    preprocessing: Preprocessing,
    budget: DecodingBudget,
    limits: ImageLimits,
    preview_side: int | None,
) -> _Picture:
    data = bytes_of(place, limits)
    with spending(budget):
        try:
            pixels, losses = _decoded(data, limits, place.box, preprocessing.smallest_side)
            image = preprocessing(pixels)
            thumbnail = encode_thumbnail(pixels)
            preview = encode_preview(
                pixels, preview_side, partial(_pixels, data, limits, place.box)
            )
        except MemoryError as error:
            raise ImageTooCostly(TOO_MUCH_MEMORY) from error
    return _Picture(image, thumbnail, _sha256(pixels), preview, losses)


def _sha256(pixels: Inputs) -> str:
    """Return the SHA-256 of shape and pixels; the file format does not change the hash."""
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).hexdigest()


def _pixels(
    data: bytes, limits: ImageLimits, box: Box | None, smallest_side: int | None
) -> NDArray[np.uint8]:
    return _decoded(data, limits, box, smallest_side)[0]


def _decoded(
    data: bytes, limits: ImageLimits, box: Box | None, smallest_side: int | None
) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Decode an image; if ``box`` is given, decode only this part, at full resolution.

    Returns the pixels and the losses; see `DecodedImage.losses`.

    Raises
    ------
    ImageError : the image cannot be decoded, or the box lies outside the image.
    """
    if box is None:
        decoded = decode_image(data, limits, smallest_side)
        return decoded.pixels, decoded.losses
    decoded = decode_image(data, limits)
    pixels = decoded.pixels
    left, top, width, height = box
    rows = slice(max(0, math.floor(top)), max(0, math.ceil(top + height)))
    columns = slice(max(0, math.floor(left)), max(0, math.ceil(left + width)))
    part = pixels[rows, columns]
    if part.size == 0:
        raise CorruptImage(
            f"The box of {width:g} × {height:g} pixels at {left:g}, {top:g} lies outside the image "
            f"of {pixels.shape[1]} × {pixels.shape[0]} pixels. Correct the box, or leave it out."
        )
    return np.ascontiguousarray(part), decoded.losses


def read_again(place: Place, smallest_side: int | None) -> NDArray[np.uint8]:
    """Decode an indexed image without limits, because the image has passed the limits before."""
    with Path(place.path).open("rb") as file:
        file.seek(place.offset or 0)
        data = file.read(-1 if place.offset is None else place.size)
    return decode_again(data, place.box, smallest_side)


def decode_again(data: bytes, box: Box | None, smallest_side: int | None) -> NDArray[np.uint8]:
    """Decode the bytes of an indexed image; if ``box`` is given, return only this part."""
    return _pixels(data, _UNLIMITED, box, smallest_side)


def bytes_of(place: Place, limits: ImageLimits) -> bytes:
    """Read the bytes of an image; stop one byte after the limit, to save memory.

    Raises
    ------
    EmptyImage : the row of a table has no image.
    """
    if place.offset is not None and place.size < 0:  # `MISSING`
        raise EmptyImage(NO_IMAGE.reason)
    with place.opened() as file:
        if place.offset:
            file.seek(place.offset)
        wanted = limits.max_bytes + 1 if place.offset is None else place.size
        data = file.read(min(wanted, limits.max_bytes + 1))
    check_size(data, limits)
    return data
