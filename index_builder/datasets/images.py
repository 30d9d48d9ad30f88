"""A collection of labelled images, decoded on access."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import EncoderInput
from model_store.images import decode_image
from model_store.table import SHARED, Table

T = TypeVar("T")

Pixels = NDArray[Any]
"""An image (H, W, 3) uint8, or a vector (n,) float32 for encoders of vectors."""

Read = Callable[[int, int | None], Pixels]
"""Function (position, ``smallest_side``) → pixels; for ``smallest_side``, see `decode_image`."""

Content = Callable[[int], bytes]
"""Function (position) → bytes that identify the image, for example a hash of the file."""


@dataclass(frozen=True, slots=True)
class LabelledImages(Table):
    """N images with their ids and labels.

    Attributes
    ----------
    ids : N distinct strings.
    labels : N labels.
    read : returns image ``i`` of the source as (H, W, 3) uint8 RGB.
    rows : (N,) positions of these images in the source.
    groups : N names of groups, for example one object in several photographs; gallery and queries
        never share a group. None if unknown.
    sources : N names of image sources, for example cameras; None if unknown.
    content : returns bytes that identify an image of the source, see `Content`. If ``content`` is
        None, values computed from the images are not cached.
    metadata : metadata of each image; None without metadata.
    places : (N, 3) coordinates where the images were taken, see `model_store.truth.wgs84`; NaN if
        unknown. None if matches do not depend on places.
    """

    ids: tuple[str, ...]
    labels: tuple[str, ...]
    read: Read = field(metadata=SHARED)
    rows: NDArray[np.int64]
    groups: tuple[str, ...] | None = None
    sources: tuple[str, ...] | None = None
    content: Content | None = field(default=None, metadata=SHARED)
    metadata: tuple[Mapping[str, Any], ...] | None = None
    places: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.labels) == len(self.rows):
            raise ValueError(f"{len(self.ids)=}, {len(self.labels)=}, {len(self.rows)=} differ")
        for known in (self.groups, self.sources, self.metadata):
            if known is not None and len(known) != len(self.ids):
                raise ValueError(f"{len(known)} groups, sources or metadata of {len(self.ids)}")

    def pixels(self, position: int, smallest_side: int | None = None) -> Pixels:
        """Return the image at ``position``, (H, W, 3) uint8 RGB, at full or reduced size.

        Parameters
        ----------
        smallest_side : minimum side of a JPEG that is decoded at reduced size, see `decode_image`.
        """
        return self.read(int(self.rows[position]), smallest_side)

    def contents(self) -> list[bytes] | None:
        """Return the bytes that identify each image, see `Content`; None if unknown."""
        if self.content is None:
            return None
        return [self.content(int(row)) for row in self.rows]

    def label_codes(self) -> NDArray[np.int64]:
        """Return the label codes (N,): numbers from 0 without gaps, in alphabetical order."""
        return np.unique(np.array(self.labels), return_inverse=True)[1].astype(np.int64)

    def prepared(self, preprocessing: EncoderInput) -> Pixels:
        """Return all images at the encoder's input size, (N, H, W, 3) uint8, or vectors (N, n)."""
        images = np.empty((len(self), *preprocessing.shape), dtype=preprocessing.dtype)
        for position in range(len(self)):
            images[position] = preprocessing(self.pixels(position, preprocessing.smallest_side))
        return images

    def batches(
        self, preprocessing: EncoderInput, size: int
    ) -> Iterator[tuple[NDArray[np.int64], Pixels]]:
        """Yield positions and prepared images in batches of ``size``."""
        for start in range(0, len(self), size):
            positions = np.arange(start, min(start + size, len(self)))
            yield positions, self.at(positions).prepared(preprocessing)


def joined(*parts: LabelledImages) -> LabelledImages:
    """Concatenate several collections."""
    starts = np.cumsum([0, *map(len, parts)])

    def place(position: int) -> tuple[LabelledImages, int]:
        part = int(np.searchsorted(starts, position, side="right")) - 1
        return parts[part], position - int(starts[part])

    def read(position: int, smallest_side: int | None) -> Pixels:
        part, within = place(position)
        return part.pixels(within, smallest_side)

    def content(position: int) -> bytes:
        part, within = place(position)
        assert part.content is not None  # noqa: S101 - or there is no such function, see below
        return part.content(int(part.rows[within]))

    return LabelledImages(
        tuple(chain.from_iterable(part.ids for part in parts)),
        tuple(chain.from_iterable(part.labels for part in parts)),
        read,
        np.arange(starts[-1]),
        _all_or_none([part.groups for part in parts]),
        _all_or_none([part.sources for part in parts]),
        content if all(part.content is not None for part in parts) else None,
        _all_or_none([part.metadata for part in parts]),
        _joined_places(parts),
    )


def _joined_places(parts: Sequence[LabelledImages]) -> NDArray[np.float64] | None:
    """Return the places of all parts; NaN for a part without places.

    None if no part has places.
    """
    if all(part.places is None for part in parts):
        return None
    return np.concatenate(
        [np.full((len(part), 3), np.nan) if part.places is None else part.places for part in parts]
    )


def changed(
    images: LabelledImages, how: str, change: Callable[[Pixels, int], Pixels]
) -> LabelledImages:
    """Return images with pixels ``change(pixels, position)``; ids and labels stay the same.

    Parameters
    ----------
    how : text that identifies ``change`` and its parameters. The text is hashed into the bytes that
        identify a changed image.
    """

    def read(position: int, smallest_side: int | None) -> Pixels:
        return change(images.pixels(position, smallest_side), position)

    def content(position: int) -> bytes:
        assert images.content is not None  # noqa: S101 - or there is no such function, see below
        of_image = images.content(int(images.rows[position]))
        return hashlib.sha256(f"{how} {position} ".encode() + of_image).digest()

    return replace(
        images,
        read=read,
        rows=np.arange(len(images)),
        content=None if images.content is None else content,
    )


def _all_or_none(parts: Sequence[tuple[T, ...] | None]) -> tuple[T, ...] | None:
    given = [part for part in parts if part is not None]
    return tuple(chain.from_iterable(given)) if len(given) == len(parts) else None


def from_files(
    root: Path,
    names: Sequence[str],
    labels: Sequence[str],
    digests: Sequence[bytes] = (),
    decoded: Mapping[int, Pixels] = MappingProxyType({}),
) -> LabelledImages:
    """Return the image files below ``root``, see `from_encoded`; the id is the file's name."""

    def file(row: int) -> bytes:
        return (root / names[row]).read_bytes()

    return from_encoded(names, labels, file, digests, decoded)


def from_encoded(
    names: Sequence[str],
    labels: Sequence[str],
    file: Callable[[int], bytes],
    digests: Sequence[bytes] = (),
    decoded: Mapping[int, Pixels] = MappingProxyType({}),
) -> LabelledImages:
    """Return image files, decoded on access.

    Parameters
    ----------
    file : returns the bytes of a file.
    digests : SHA-256 of each file; if empty, computed on access.
    decoded : pixels of already decoded files, by position.
    """

    def read(row: int, smallest_side: int | None) -> Pixels:
        known = decoded.get(row)
        if known is not None and is_whole_at(known, smallest_side):
            return known
        return decode_image(file(row), smallest_side=smallest_side).pixels

    @cache
    def content(row: int) -> bytes:
        return digests[row] if digests else hashlib.sha256(file(row)).digest()

    rows = np.arange(len(names))
    return LabelledImages(tuple(names), tuple(labels), read, rows, content=content)


def is_whole_at(pixels: Pixels, smallest_side: int | None) -> bool:
    """Return whether an image is too small to be decoded at half its size.

    Parameters
    ----------
    pixels : the image at full size.
    smallest_side : see `decode_image`.
    """
    return smallest_side is None or min(pixels.shape[:2]) < 2 * smallest_side


def from_arrays(prefix: str, images: Pixels, labels: Sequence[str]) -> LabelledImages:
    """A collection in memory: ``images`` (N, H, W) grey or (N, H, W, 3) RGB, uint8."""
    width = len(str(len(images) - 1))

    def read(row: int, _smallest_side: int | None) -> Pixels:
        image = images[row]
        return np.repeat(image[..., None], 3, axis=-1) if image.ndim == 2 else image

    def content(row: int) -> bytes:
        image = images[row]
        return hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest()

    return LabelledImages(
        tuple(f"{prefix}-{row:0{width}d}" for row in range(len(images))),
        tuple(labels),
        read,
        np.arange(len(images)),
        content=content,
    )
