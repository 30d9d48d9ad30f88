"""Blocks: entries of a collection that are decoded, encoded and stored together."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from index_builder.storage.urls import is_url, unsigned
from model_store.encoder.contract import Inputs
from model_store.errors import ConfigError, DatasetError

EncodedThumbnail = tuple[bytes, str]
"""The bytes of a thumbnail, and their media type. The class `Thumbnail` is not used here, because
its import would load FAISS in every decoder."""

Box = tuple[float, float, float, float]

BLOCK = 64
"""Number of images in a block. A killed run loses only the blocks in progress."""

_READING = 2
"""Version of the data that a shard stores beside embeddings. Shards with a different version are
rebuilt."""

BLOCK_OF_VECTORS = 1_024
"""Number of vectors in a block. Larger blocks need fewer flushes to disk. A block of vectors can be
larger than a block of images, because vectors need no encoding."""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of an image's bytes.

    Attributes
    ----------
    path : absolute path of the file, or its URL.
    offset : byte offset of the image in the file; None if the image is the whole file.
    size : size in bytes; -1 if the file was missing when the source was read, 0 if unknown.
    changed_ns : modification time of the file in nanoseconds; 0 if unknown.
    box : left, top, width and height of the part to use, in pixels of the upright image; None for
        the whole image.
    version : entity tag of an object in a bucket, which identifies the content; empty for other
        images.
    """

    path: str
    offset: int | None
    size: int
    changed_ns: int
    box: Box | None = None
    version: str = ""

    @property
    def is_remote(self) -> bool:
        """True if the image must be downloaded before decoding."""
        return is_url(self.path)

    def opened(self) -> BinaryIO:
        """Open the file.

        If the file is a named pipe, the call does not wait until a process opens the pipe for
        writing.
        """
        return open(self.path, "rb", opener=_at_once)

    def identity(self) -> list[object]:
        """Return the identity of the image; moving the collection does not change the identity.

        In a bucket, the version identifies the content. If the same content is uploaded again, the
        image counts as unchanged. Before the download, the size and the date of an image on the web
        are unknown. The URL without its signature is used instead.
        """
        when: object = self.version or self.changed_ns
        named = [unsigned(self.path)] if self.is_remote and not self.version else []
        return [self.offset, self.size, when, self.box, *named]


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


@dataclass(frozen=True, slots=True)
class Entry:
    """One image of a collection.

    Attributes
    ----------
    id : the item's id in the gallery.
    label : the label; None if unknown.
    group : name of the image's group; None if unknown. Images of a group are not independent, for
        example photographs of the same object.
    source : origin of the image, such as a camera or a shop; None if unknown.
    origin : position of the image in the source, for messages: a file, a line or an archive member.
    """

    id: str
    place: Place
    label: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    origin: str = ""
    group: str | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        texts = (self.id, self.place.path, self.label, self.group, self.source, self.origin)
        for text in texts:
            if text is not None and not text.isascii():  # fast check: there may be 10⁷ entries
                require_unicode(text, self.origin)


@dataclass(frozen=True, slots=True)
class Block:
    """Images that are decoded, encoded and stored together.

    Attributes
    ----------
    number : the block's number from 0, in the order of the source.
    ids : ids of the n images.
    places : places of the n images; empty for images in memory.
    failures : errors by id, for images that could not be fetched or have no valid id.
    """

    number: int
    ids: tuple[str, ...]
    places: tuple[Place, ...] = ()
    failures: Mapping[str, Failure] = field(default_factory=dict)

    def digest(self, recipe: str) -> str:
        """Return a hash of everything that determines the block's shard.

        ``recipe`` is a text that describes the encoder and the batches.
        """
        files = [*(place.identity() for place in self.places), *sorted(self.failures)]
        content = json.dumps([recipe, _READING, self.number, self.ids, files])
        return hashlib.sha256(content.encode()).hexdigest()

    def singles(self) -> Iterator[Block]:
        """Yield each image as a separate block."""
        for name, place in zip(self.ids, self.places, strict=True):
            failures = {name: self.failures[name]} if name in self.failures else {}
            yield Block(self.number, (name,), (place,), failures)


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why an image is not in the gallery.

    Attributes
    ----------
    error : name of the error class.
    reason : the message for the user.
    passing : whether a later run can succeed, for example after a missing disk is mounted again.
    """

    error: str
    reason: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """A block of images as input for the encoder.

    Attributes
    ----------
    ids : ids of the n images, in the order of the source.
    images : (n, H, W, 3) uint8, black for unreadable images; or vectors (n, m) float32.
    thumbnails : n thumbnails; empty for vectors, None for unreadable images.
    hashes : n SHA-256 digests of the pixels, or of the vectors.
    failures : errors by id, for unreadable images.
    previews : n JPEG previews; empty if not requested, or if the thumbnail is large enough.
    losses : warnings by id, for images that lost data in decoding; see `DecodedImage.losses`.
    """

    number: int
    ids: tuple[str, ...]
    images: Inputs
    thumbnails: tuple[EncodedThumbnail | None, ...]
    hashes: tuple[str, ...]
    failures: Mapping[str, Failure]
    previews: tuple[bytes, ...]
    losses: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: list[PreparedBlock]) -> PreparedBlock:
        """Join parts of a block that were prepared separately."""
        return cls(
            parts[0].number,
            tuple(name for part in parts for name in part.ids),
            np.concatenate([part.images for part in parts]),
            tuple(one for part in parts for one in part.thumbnails),
            tuple(one for part in parts for one in part.hashes),
            {name: why for part in parts for name, why in part.failures.items()},
            tuple(one for part in parts for one in part.previews),
            {name: said for part in parts for name, said in part.losses.items()},
        )


def require_unicode(text: str, origin: str) -> None:
    """Refuse text with an unpaired surrogate, which UTF-8 cannot encode.

    An unpaired surrogate comes from an escape in JSON, or from a file name that is not UTF-8.

    Raises
    ------
    DatasetError
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = origin.encode(errors="backslashreplace").decode()
        raise DatasetError(
            f"{where}: {text[error.start : error.end]!r} in {text[:200]!r} is no Unicode. Write "
            "the text in UTF-8; if the text is a file name, rename the file."
        ) from error


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The limit for unreadable images: either a ``share`` in [0, 1] or a ``count``.

    The field that is not used is None.
    """

    share: float | None = None
    count: int | None = None

    def allows(self, n_bad: int, n_images: int) -> bool:
        """Return whether ``n_bad`` unreadable images of ``n_images`` are accepted."""
        if self.count is not None:
            return n_bad <= self.count
        return n_bad <= (self.share or 0.0) * n_images

    def __str__(self) -> str:
        return f"{self.count}" if self.count is not None else f"{100 * (self.share or 0.0):g} %"


NONE = Tolerance(count=0)


def parse_tolerance(text: str) -> Tolerance:
    """Read ``1%`` or ``25``.

    Raises
    ------
    ConfigError
    """
    share = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if share and float(share[1]) <= 100:
        return Tolerance(share=float(share[1]) / 100)
    if re.fullmatch(r"\d+", text.strip()):
        return Tolerance(count=int(text))
    raise ConfigError(f"--max-bad is {text!r}; wanted a share such as 1%, or a number such as 25.")
