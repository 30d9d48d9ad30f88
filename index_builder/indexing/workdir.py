"""The run directory of an index command, and its shards; a later run resumes from it.

A shard is a file with the data of a block's images. The file is written atomically.

::

    SHA-256 of the rest │ length of the header │ header, JSON │ means │ variances │ pictures
    32 bytes            │ 8 bytes              │              │ float32, (n, D) each │ one by one

The pictures are the thumbnails of all images, followed by the previews of all images. A preview can
be empty.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import accumulate, count, pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import Timeout
from numpy.typing import NDArray

from index_builder.datasets.image_files import is_system_file
from index_builder.output import CALIBRATION_TABLE, writing
from model_store.errors import OutputError, RunInUse
from model_store.files import lock_between_processes, replacing
from model_store.gallery import Thumbnail

from .blocks import Block, Failure

_LENGTH = struct.Struct("<Q")
_HASH_BYTES = 32


class Position(NamedTuple):
    """The position of an image's data: the shard's number, and byte offsets in the shard's file."""

    shard: int
    mean: int
    variance: int
    thumbnail: int
    thumbnail_end: int
    preview: int
    preview_end: int


@dataclass(frozen=True, slots=True)
class Shard:
    """The data of a block's n readable images, and the errors of the block's other images.

    Attributes
    ----------
    number, digest : number and digest of the block.
    ids : n ids. Row i of the other fields belongs to the image ``ids[i]``.
    mean, variance : (n, D) float32.
    thumbnails : n thumbnails.
    hashes : n SHA-256 digests of the images' pixels.
    failures : errors by id, for images that are not in the shard.
    previews : n JPEG previews; empty for an image without a preview.
    positions : n positions in the file; an empty tuple if the shard was not read from a file.
    losses : warnings by id, for images that lost data in decoding.
    """

    number: int
    digest: str
    ids: tuple[str, ...]
    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    thumbnails: tuple[Thumbnail, ...]
    hashes: tuple[str, ...]
    failures: Mapping[str, Failure]
    previews: tuple[bytes, ...]
    positions: tuple[Position, ...] = ()
    losses: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        header = {
            "number": self.number,
            "digest": self.digest,
            "ids": self.ids,
            "dim": self.mean.shape[1],
            "media_types": [one.media_type for one in self.thumbnails],
            "sizes": [len(one.data) for one in self.thumbnails],
            "preview_sizes": [len(one) for one in self.previews],
            "hashes": self.hashes,
            "failures": {name: asdict(why) for name, why in self.failures.items()},
            "losses": dict(self.losses),
        }
        text = json.dumps(header, sort_keys=True).encode()
        content = b"".join(
            [
                _LENGTH.pack(len(text)),
                text,
                self.mean.astype("<f4").tobytes(),
                self.variance.astype("<f4").tobytes(),
                *(one.data for one in self.thumbnails),
                *self.previews,
            ]
        )
        return hashlib.sha256(content).digest() + content

    @classmethod
    def from_bytes(cls, data: bytes) -> Shard:
        """Parse the result of `to_bytes`.

        Raises
        ------
        ValueError : the content differs from its checksum.
        """
        content = memoryview(data)[_HASH_BYTES:]
        if hashlib.sha256(content).digest() != data[:_HASH_BYTES]:
            raise ValueError("the checksum does not match the content")
        (length,) = _LENGTH.unpack_from(content)
        start = _LENGTH.size + length
        header = json.loads(bytes(content[_LENGTH.size : start]))
        n, dim = shape = (len(header["ids"]), header["dim"])
        values = np.frombuffer(content, "<f4", 2 * n * dim, start).reshape(2, *shape)
        first = _HASH_BYTES + start
        sizes = header["sizes"] + header.get("preview_sizes", [0] * n)  # 0 in old shards
        bounds = list(pairwise(accumulate(sizes, initial=first + 8 * n * dim)))
        positions = tuple(
            Position(header["number"], at, at + 4 * n * dim, *thumbnail, *preview)
            for at, thumbnail, preview in zip(
                count(first, 4 * dim), bounds, bounds[n:], strict=False
            )
        )
        return cls(
            header["number"],
            header["digest"],
            tuple(header["ids"]),
            values[0],
            values[1],
            tuple(
                Thumbnail(data[one.thumbnail : one.thumbnail_end], media_type)
                for one, media_type in zip(positions, header["media_types"], strict=True)
            ),
            tuple(header["hashes"]),
            {name: Failure(**why) for name, why in header["failures"].items()},
            tuple(data[one.preview : one.preview_end] for one in positions),
            positions,
            header.get("losses", {}),
        )


@dataclass(frozen=True, slots=True)
class ShardStore:
    """The shards in a directory."""

    directory: Path

    def write(self, shard: Shard) -> None:
        """Write ``shard`` atomically."""
        with replacing(self._path(shard.number)) as partial:
            partial.write_bytes(shard.to_bytes())

    def find(self, block: Block, digest: str) -> Shard | None:
        """Return the shard of ``block``; None if the shard must be built or rebuilt.

        A shard is rebuilt if it is damaged, or if its images or the encoder have changed. A shard
        is also rebuilt if an image failed for a temporary reason.
        """
        try:
            shard = self.read(block.number)
        except (FileNotFoundError, ValueError):
            return None
        passing = any(failure.passing for failure in shard.failures.values())
        return None if shard.digest != digest or passing else shard

    def read(self, number: int) -> Shard:
        """Read the shard with this number.

        Raises
        ------
        ValueError : the shard is damaged.
        """
        return Shard.from_bytes(self._path(number).read_bytes())

    def all(self, n_blocks: int) -> Iterator[Shard]:
        """Yield the shards of ``n_blocks`` blocks, in order."""
        return map(self.read, range(n_blocks))

    def gather(
        self, positions: Sequence[Position], dim: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], list[tuple[bytes, bytes]]]:
        """Return means (n, D), variances (n, D), thumbnails and previews for n ``positions``.

        Each shard is opened once. Checksums are not verified again, because `read` has verified
        them.
        """
        mean, variance = np.empty((2, len(positions), dim), np.float32)
        pictures = [(b"", b"")] * len(positions)
        by_shard: dict[int, list[int]] = {}
        for row, position in enumerate(positions):
            by_shard.setdefault(position.shard, []).append(row)
        for number, rows in by_shard.items():
            with (
                self._path(number).open("rb") as file,
                mmap(file.fileno(), 0, access=ACCESS_READ) as content,
            ):
                for row in rows:
                    at = positions[row]
                    mean[row] = np.frombuffer(content, "<f4", dim, at.mean)
                    variance[row] = np.frombuffer(content, "<f4", dim, at.variance)
                    pictures[row] = (
                        content[at.thumbnail : at.thumbnail_end],
                        content[at.preview : at.preview_end],
                    )
        return mean, variance, pictures

    def _path(self, number: int) -> Path:
        return self.directory / f"{number:08d}.shard"


LOCK_FILE = "lock"

_OF_A_RUN = (
    {LOCK_FILE},
    {f"index/{LOCK_FILE}"},
    {"training.json", "checkpoint.safetensors"},
    {"training.json", "members"},
)
"""Files and folders that together identify a run directory. Builds of Vouch 0.2 had no lock."""


class Work:
    """A run directory and its files.

    ::

    <work>/
      lock              held by the process that works here
      index.json        input, state and result of the run
      quarantine.jsonl  images that are not in the gallery, with reasons
      duplicates.jsonl  ids of images with the same content
      losses.jsonl      images that lost data in decoding
      calibration.md    all results of the calibration, as a table
      catalogue.sqlite  entries of the source, written anew by every run
      source/           copied or unpacked files of the source
      fetched/          remote images that are about to be decoded
      vectors.sqlite    cache of embeddings that the calibration uses again
      shards/           embeddings; see `index_builder.indexing.workdir`
      bundle/           the unfinished bundle
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.summary = directory / "index.json"
        self.quarantine = directory / "quarantine.jsonl"
        self.duplicates = directory / "duplicates.jsonl"
        self.losses = directory / "losses.jsonl"
        self.calibration_table = directory / CALIBRATION_TABLE
        self.catalogue = directory / "catalogue.sqlite"
        self.source = directory / "source"
        self.fetched = directory / "fetched"
        self.vectors = directory / "vectors.sqlite"
        self.store = ShardStore(directory / "shards")
        self.bundle = directory / "bundle"

    def begin(self, *, resume: bool) -> None:
        """Create the directories. If ``resume`` is true, the shards of earlier runs are kept."""
        if not resume:
            self.clear()
        for directory in (self.store.directory, self.source):
            directory.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove all files except the reports."""
        for directory in (self.store.directory, self.bundle, self.source, self.fetched):
            shutil.rmtree(directory, ignore_errors=True)
        for path in (self.catalogue, self.vectors):
            path.unlink(missing_ok=True)


def require_own(directory: Path) -> None:
    """Check that a run directory is new, empty or of an earlier run, because a run removes files.

    Raises
    ------
    OutputError : the directory has other files.
    """
    with writing(f"the run directory {directory}"):
        if not directory.exists() or any(
            all((directory / name).exists() for name in names) for names in _OF_A_RUN
        ):
            return
        names = sorted(path.name for path in directory.iterdir() if not is_system_file(path.name))
    if names:
        raise OutputError(
            f"{directory} is not the directory of a run, but it has files, for example "
            f"{names[0]!r}. A run removes and replaces files in its directory. Name a new or empty "
            "directory with --run."
        )


@contextmanager
def occupied(directory: Path) -> Iterator[Work]:
    """Lock the run directory ``directory`` in a context, and return its `Work`.

    Raises
    ------
    RunInUse : another process uses the directory.
    OutputError : the directory cannot be created or written, or see `require_own`.
    """
    require_own(directory)
    with writing(f"the run directory {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
        try:
            held = lock_between_processes(directory / LOCK_FILE).acquire(blocking=False)
        except Timeout as error:
            raise RunInUse(
                f"Another process works in {directory}. Wait for it to end, or name another --run."
            ) from error
    with held:
        yield Work(directory)
