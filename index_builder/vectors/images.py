"""Vectors of many images; each image is decoded once, and its vector is computed once.

All steps of a build share the vectors. If a vector is in the cache file, it is read from the file,
bit for bit. The other vectors are computed and then cached. Each processor has one thread, and all
batches have the same size.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import starmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.images import Pixels
from index_builder.output import writing
from index_builder.progress import progress_bar
from model_store.encoder.contract import EncoderInput
from model_store.installation import installed_versions
from model_store.machine import usable_processors

Vector = NDArray[np.float32]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (
    maker TEXT NOT NULL, content BLOB NOT NULL,
    vector BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (maker, content)
) WITHOUT ROWID
"""

_KNOWN = "SELECT content, vector, checksum FROM vectors WHERE maker = ? AND content IN ({})"

_READ_AT_ONCE = 500
"""Number of vectors in one query. One query for each vector takes 2.5 times as long."""

MOST_BYTES = 2**30
"""Default maximum size of the vectors in bytes: enough for 200,000 photographs with MobileNetV2."""


class VectorFile:
    """A cache of float32 vectors; a key is a maker (see `ImageVectors`) and an image's content.

    Vectors are stored bit for bit. Each write is one SQLite transaction. A damaged file is replaced
    by an empty file, because all vectors can be computed again. Several threads can use the cache
    at the same time.

    Parameters
    ----------
    path : path of the file; None for memory.
    most_bytes : maximum size of all vectors. If a write would exceed the maximum, the vectors of
        other makers are deleted. If the write still exceeds the maximum, it is skipped.
    """

    def __init__(self, path: Path | None, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._connection = self._opened()

    def _opened(self) -> sqlite3.Connection:
        if self._path is None:
            connection = sqlite3.connect(":memory:", check_same_thread=False)
            connection.execute(_SCHEMA)
            self._n_bytes = 0
            return connection
        with writing(f"the vectors in {self._path}"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not _is_sound(self._path):
                self._path.unlink(missing_ok=True)
            connection = sqlite3.connect(self._path, check_same_thread=False)
            connection.execute(_SCHEMA)
            # Writes do not wait for the disk. After a power failure, damaged vectors are computed
            # again.
            connection.execute("PRAGMA synchronous = OFF")
        self._n_bytes = _n_bytes(connection)
        return connection

    def read(self, maker: str, contents: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors of ``maker`` for the ``contents`` that are in the cache."""
        found: dict[bytes, Vector] = {}
        with self._lock:
            for start in range(0, len(contents), _READ_AT_ONCE):
                some = contents[start : start + _READ_AT_ONCE]
                known = _KNOWN.format(", ".join("?" * len(some)))
                for content, vector, checksum in self._connection.execute(known, (maker, *some)):
                    if zlib.crc32(vector) == checksum:
                        found[content] = np.frombuffer(vector, "<f4")
        return found

    def write(self, maker: str, contents: Sequence[bytes], vectors: Vector) -> None:
        """Store ``vectors`` (n, size) of ``maker`` for n ``contents``, if there is enough space."""
        rows = vectors.astype("<f4", copy=False)
        with self._lock, writing(f"the vectors in {self._path}"), self._connection:
            if self._n_bytes + rows.nbytes > self._most_bytes:
                self._connection.execute("DELETE FROM vectors WHERE maker != ?", (maker,))
                self._n_bytes = _n_bytes(self._connection)
            if self._n_bytes + rows.nbytes > self._most_bytes:
                return
            kept = zip(contents, (row.tobytes() for row in rows), strict=True)
            self._connection.executemany(
                "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)",
                ((maker, content, data, zlib.crc32(data)) for content, data in kept),
            )
            self._n_bytes += rows.nbytes

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


def _n_bytes(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT coalesce(sum(length(vector)), 0) FROM vectors").fetchone()
    return int(found[0])


def _is_sound(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        try:
            found: list[tuple[str]] = connection.execute("PRAGMA quick_check").fetchall()
        except sqlite3.OperationalError:
            raise  # the disk cannot be read or written, so a new file would not help
        except sqlite3.DatabaseError:
            return False
    return found == [("ok",)]


Positions = NDArray[np.int64]

Compute = Callable[[Pixels], Vector]
"""Function from images (n, H, W, 3) uint8 to vectors (n, size) float32. Several threads call it."""

Seen = Callable[[int, Pixels], None]
"""Function that receives the position and the pixels of each decoded image. Several threads call
it."""

CPU_BATCH = 8
"""Batch size on a CPU. With one thread, larger batches are not faster. MobileNetV2 at 224 px
encodes 121 images a second in batches of 8. In batches of 64, it encodes 102 images a second and
needs eight times the memory."""

AT_ONCE = 256
"""The number of images that are looked up, computed and cached together is a multiple of this."""


@dataclass(frozen=True, slots=True)
class ImageVectors:
    """Vectors of images from a network, with a cache.

    Attributes
    ----------
    compute : the network.
    maker : text that identifies the network and every setting that can change a vector.
    preprocessing : the preprocessing of an upright RGB image, or the shape of the input vectors.
    batch : batch size; incomplete batches are padded with black images.
    known : the cache of vectors; None for no cache.
    """

    compute: Compute
    maker: str
    preprocessing: EncoderInput
    batch: int
    known: VectorFile | None = None

    def of(
        self, images: LabelledImages, description: str, seen: Seen | None = None
    ) -> Iterator[tuple[Positions, Vector]]:
        """Yield the positions (n,) and the vectors (n, size) of ``images`` in order, in batches.

        Parameters
        ----------
        description : text of the progress bar.
        seen : function that is called for each decoded image.
        """
        n = usable_processors()
        at_once = AT_ONCE * -(-4 * n * self.batch // AT_ONCE)
        with ThreadPoolExecutor(n, thread_name_prefix="vectors") as pool, progress_bar() as bar:
            task = bar.add_task(description, total=len(images))
            computed = partial(bar.advance, task)
            for start in range(0, len(images), at_once):
                positions = np.arange(start, min(start + at_once, len(images)))
                compute = partial(self._computed_by, pool, images, positions, seen, computed)
                contents = images.at(positions).contents()
                found = self._looked_up(contents, len(positions), compute)
                bar.update(task, completed=start + len(positions))
                yield positions, found

    def of_prepared(self, images: Pixels, contents: Sequence[bytes] | None) -> Vector:
        """Return vectors (n, size) of n preprocessed images.

        Parameters
        ----------
        contents : see `LabelledImages.contents`.
        """
        return self._looked_up(contents, len(images), lambda rows: self._computed(images[rows]))

    def cached(self, contents: Sequence[bytes] | None) -> Vector | None:
        """Return the vectors (n, size) of n images; None if a vector is not in the cache.

        Parameters
        ----------
        contents : see `LabelledImages.contents`.
        """
        if self.known is None or contents is None:
            return None
        found = self.known.read(self.maker, contents)
        if any(one not in found for one in contents):
            return None
        return np.stack([found[one] for one in contents])

    def _looked_up(
        self,
        contents: Sequence[bytes] | None,
        n: int,
        compute: Callable[[Positions], Vector],
    ) -> Vector:
        """Return n vectors; vectors that are not in the cache are computed and cached."""
        if self.known is None or contents is None:
            return compute(np.arange(n))
        known = self.known.read(self.maker, contents)
        missing = np.array([row for row, one in enumerate(contents) if one not in known], np.int64)
        if len(missing):
            computed = compute(missing)
            of_missing = [contents[row] for row in missing.tolist()]
            self.known.write(self.maker, of_missing, computed)
            known |= dict(zip(of_missing, computed, strict=True))
        return np.stack([known[one] for one in contents])

    def _computed_by(
        self,
        pool: ThreadPoolExecutor,
        images: LabelledImages,
        positions: Positions,
        seen: Seen | None,
        computed: Callable[[int], None],
        rows: Positions,
    ) -> Vector:
        """Return the vectors of the images at ``positions[rows]``; threads compute them in batches.

        Parameters
        ----------
        computed : function that is called after each batch, with the number of images in the
            batch.
        """
        chosen = positions[rows]
        batches = [chosen[i : i + self.batch] for i in range(0, len(chosen), self.batch)]
        parts = []
        for part in pool.map(partial(self._decoded, images, seen), batches):
            parts.append(part)
            computed(len(part))
        return np.concatenate(parts)

    def _decoded(self, images: LabelledImages, seen: Seen | None, positions: Positions) -> Vector:
        """Decode images and return their vectors."""
        expected = self.preprocessing
        prepared = np.empty((len(positions), *expected.shape), dtype=expected.dtype)
        for row, position in enumerate(positions.tolist()):
            pixels = images.pixels(position, expected.smallest_side)
            prepared[row] = expected(pixels)
            if seen is not None:
                seen(position, pixels)
        return self._computed(prepared)

    def _computed(self, prepared: Pixels) -> Vector:
        """Compute the vectors of any number of images in batches of equal size."""
        found = []
        for start in range(0, len(prepared), self.batch):
            batch = prepared[start : start + self.batch]
            n_images = len(batch)
            if n_images < self.batch:
                blank = np.zeros((self.batch - n_images, *batch.shape[1:]), dtype=batch.dtype)
                batch = np.concatenate([batch, blank])
            found.append(self.compute(batch)[:n_images])
        return np.concatenate(found)


def libraries() -> str:
    """Return the versions of the libraries that decode or compute.

    Another version of a library can change the rounding.
    """
    return versions(("onnxruntime", "onnxruntime-gpu", "pillow", "numpy"))


def versions(distributions: Iterable[str]) -> str:
    """Return the names and the versions of the installed ``distributions``."""
    return " ".join(starmap("{} {}".format, sorted(installed_versions(distributions).items())))
