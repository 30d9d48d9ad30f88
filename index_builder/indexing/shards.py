"""Shards: what is known of the images of a block, in a file of its own that is whole or not there.

::

    SHA-256 of the rest │ length of the header │ header, JSON │ means │ variances │ thumbnails
    32 bytes            │ 8 bytes              │              │ float32, (n, D) each │ one by one
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.indexing.blocks import Block, Failure
from model_store.gallery import Thumbnail

_LENGTH = struct.Struct("<Q")
_HASH_BYTES = 32
_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class Shard:
    """The embeddings of a block's n readable images, and the errors of the others.

    Attributes
    ----------
    number, digest : of the block.
    ids : n of them; row i of everything else is of image ``ids[i]``.
    mean, variance : (n, D) float32.
    thumbnails : n of them.
    hashes : n SHA-256 of the bytes that the images were read from.
    failures : by id, of the images that are left out.
    bounds : n + 1 bytes of the file between which the thumbnails lie, where it was read from one.
    """

    number: int
    digest: str
    ids: tuple[str, ...]
    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    thumbnails: tuple[Thumbnail, ...]
    hashes: tuple[str, ...]
    failures: Mapping[str, Failure]
    bounds: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """The file's content."""
        header = {
            "number": self.number,
            "digest": self.digest,
            "ids": self.ids,
            "dim": self.mean.shape[1],
            "media_types": [one.media_type for one in self.thumbnails],
            "sizes": [len(one.data) for one in self.thumbnails],
            "hashes": self.hashes,
            "failures": {name: asdict(why) for name, why in self.failures.items()},
        }
        text = json.dumps(header, sort_keys=True).encode()
        content = b"".join(
            [
                _LENGTH.pack(len(text)),
                text,
                self.mean.astype("<f4").tobytes(),
                self.variance.astype("<f4").tobytes(),
                *(one.data for one in self.thumbnails),
            ]
        )
        return hashlib.sha256(content).digest() + content

    @classmethod
    def from_bytes(cls, data: bytes) -> Shard:
        """Read what `to_bytes` gave.

        Raises
        ------
        ValueError : a byte of it is another one.
        """
        content = memoryview(data)[_HASH_BYTES:]
        if hashlib.sha256(content).digest() != data[:_HASH_BYTES]:
            raise ValueError("the checksum is not that of the content")
        (length,) = _LENGTH.unpack_from(content)
        start = _LENGTH.size + length
        header = json.loads(bytes(content[_LENGTH.size : start]))
        shape = (len(header["ids"]), header["dim"])
        n_values = shape[0] * shape[1]
        values = np.frombuffer(content, "<f4", 2 * n_values, start).reshape(2, *shape)
        bounds = tuple(accumulate(header["sizes"], initial=_HASH_BYTES + start + 8 * n_values))
        return cls(
            header["number"],
            header["digest"],
            tuple(header["ids"]),
            values[0],
            values[1],
            tuple(
                Thumbnail(data[begin:end], media_type)
                for (begin, end), media_type in zip(
                    pairwise(bounds), header["media_types"], strict=True
                )
            ),
            tuple(header["hashes"]),
            {name: Failure(**why) for name, why in header["failures"].items()},
            bounds,
        )


@dataclass(frozen=True, slots=True)
class ShardStore:
    """The shards in a directory."""

    directory: Path

    def write(self, shard: Shard) -> None:
        """Keep ``shard``: on the disk before it has its name, so that it is whole or not there."""
        path = self._path(shard.number)
        partial = path.with_suffix(_PARTIAL)
        with partial.open("wb") as file:
            file.write(shard.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)

    def find(self, block: Block, digest: str) -> Shard | None:
        """The shard of ``block``; None where it is to be made, again or for the first time.

        One that is damaged, of other images or another encoder, or without images that could not
        be read for reasons that may have passed, is to be made again.
        """
        try:
            shard = self.read(block.number)
        except (FileNotFoundError, ValueError):
            return None
        passing = any(failure.passing for failure in shard.failures.values())
        return None if shard.digest != digest or passing else shard

    def read(self, number: int) -> Shard:
        """The shard of that number.

        Raises
        ------
        ValueError : it is damaged.
        """
        return Shard.from_bytes(self._path(number).read_bytes())

    def all(self, n_blocks: int) -> Iterator[Shard]:
        """Every shard of ``n_blocks`` blocks, in order."""
        return map(self.read, range(n_blocks))

    def part(self, number: int, start: int, end: int) -> bytes:
        """Bytes of the shard of that number, as `Shard.bounds` tells them."""
        with self._path(number).open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08d}.shard"
