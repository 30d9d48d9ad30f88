"""Blocks: the entries of a collection that are processed together, and their results."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from index_builder.datasets.unicode_text import require_unicode
from index_builder.storage.urls import is_url, unsigned
from model_store.encoder.contract import Inputs

EncodedThumbnail = tuple[bytes, str]
"""The bytes of a small picture, and their media type; the gallery's own class would bring FAISS
into every decoder."""

Box = tuple[float, float, float, float]

BLOCK = 64
"""Images of a block. What is lost when the work is killed is what was at work: a few blocks."""

_READING = 2
"""Version of the data kept for an image besides its embedding; shards of another are made again."""

BLOCK_OF_VECTORS = 1_024
"""Vectors of a block: nothing has to be computed of them, and each block is a file that is waited
for until it is on the disk."""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of an image's bytes.

    Attributes
    ----------
    path : of the file, absolute; or its URL.
    offset : of the image within it; None where the image is the whole file.
    size : bytes; -1 if the file was missing when the source was read, 0 if unknown.
    changed_ns : when the file was last written to; 0 if unknown.
    box : left, top, width and height of the part that is the image, in pixels of the upright
        picture; None for all of it.
    version : in a bucket, tells this content from others of the same name.
    """

    path: str
    offset: int | None
    size: int
    changed_ns: int
    box: Box | None = None
    version: str = ""

    @property
    def is_remote(self) -> bool:
        """True of an image that has to be fetched before it can be decoded."""
        return is_url(self.path)

    def opened(self) -> BinaryIO:
        """Open the file; a pipe is opened without waiting for a writer."""
        return open(self.path, "rb", opener=_at_once)

    def identity(self) -> list[object]:
        """Return what tells it from places with other images; not where a collection lies.

        A collection that was moved is the same collection; so is one that was uploaded again, where
        versions tell contents apart. An image on the web has no size and no date until it is
        fetched: its URL, whatever signs it, is all that is known.
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
    id : names it in the gallery.
    label : its label; None if unknown.
    group : what it shows together with others, such as an object photographed several times; None
        if unknown.
    source : where it comes from, such as a camera or a shop; None if unknown.
    origin : the place in the source that names it, for messages: a file, a line, a member.
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
            if text is not None and not text.isascii():  # there may be 10^7 entries
                require_unicode(text, self.origin)


@dataclass(frozen=True, slots=True)
class Block:
    """Images that are decoded, encoded and kept together.

    Attributes
    ----------
    number : counts blocks from 0, in the order of the source.
    ids, places : n of the images; images that are in memory have no places.
    failures : by id, of the images that could not be fetched or have no valid id.
    """

    number: int
    ids: tuple[str, ...]
    places: tuple[Place, ...] = ()
    failures: Mapping[str, Failure] = field(default_factory=dict)

    def digest(self, recipe: str) -> str:
        """Hash of what its shard depends on: ``recipe`` stands for encoder and batches."""
        files = [place.identity() for place in self.places]
        content = json.dumps([recipe, _READING, self.number, self.ids, files])
        return hashlib.sha256(content.encode()).hexdigest()

    def singles(self) -> Iterator[Block]:
        """Return each image as a separate block."""
        for name, place in zip(self.ids, self.places, strict=True):
            failures = {name: self.failures[name]} if name in self.failures else {}
            yield Block(self.number, (name,), (place,), failures)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an image is not in the gallery.

    Attributes
    ----------
    error : the name of the error.
    reason : the sentence to it.
    passing : whether it may be gone another time: a disk that was not there, not a bad image.
    """

    error: str
    reason: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """A block as the encoder wants it.

    Attributes
    ----------
    ids : n of the images, in the order of the source.
    images : (n, H, W, 3) uint8; black where an image could not be read. Or vectors (n, m) float32.
    thumbnails : n of them, empty ones of vectors; None where an image could not be read.
    hashes : n SHA-256 of the pixels, or of the vectors.
    failures : by id, of the images that could not be read.
    previews : n of them, JPEG; empty ones where none is wanted, or larger than the thumbnail.
    losses : by id, of the images that lost something when they were decoded, a sentence each.
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
        """A block whose images were prepared one by one."""
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
