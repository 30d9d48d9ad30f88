"""The catalogue of a run: an SQLite file with all images of the source, in order.

In memory, a list of a million entries with metadata would take half a gigabyte.

The catalogue also has groups of images. A calibration query never finds an image of its group. The
column ``group`` of a manifest defines groups. Exact copies, and images with similar thumbnails
(near-duplicates), are in the same group, too. Vectors have no thumbnails.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index_builder.datasets.groups import (
    Fingerprint,
    fingerprint,
    pairs_among,
    pairs_of_equal,
    united,
)
from index_builder.indexing.blocks import BLOCK, Block, Entry, Failure, Place, require_unicode
from index_builder.indexing.workdir import ShardStore
from index_builder.progress import track
from model_store.errors import DatasetError
from model_store.gallery import Thumbnail
from model_store.items import check_item_id, check_label, check_text

_SCHEMA = """
CREATE TABLE entries (
  position INTEGER PRIMARY KEY, id TEXT NOT NULL, path TEXT NOT NULL, offset INTEGER,
  size INTEGER NOT NULL, changed_ns INTEGER NOT NULL, box TEXT, version TEXT NOT NULL,
  label TEXT, metadata TEXT NOT NULL, origin TEXT NOT NULL, group_name TEXT, source TEXT
);
"""

_SIZES = """
SELECT path, offset, size, changed_ns, box, version,
  size IN (SELECT size FROM entries WHERE size >= 0 GROUP BY size HAVING count(*) > 1)
FROM entries WHERE size >= 0 ORDER BY position
"""
_HEAD_BYTES = 4096

N_SHOWN = 5
"""Maximum number of examples in an error message."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The counts of a catalogue's images.

    Attributes
    ----------
    n_images : number of all images in the source.
    n_labelled : number of images with a label.
    n_labels : number of distinct labels.
    n_missing : number of missing images: the source names them, but they do not exist.
    n_bytes : total size in bytes of all images of known size.
    """

    n_images: int
    n_labelled: int
    n_labels: int
    n_missing: int
    n_bytes: int


class Catalogue:
    """Writes the entries of a source to a new SQLite file, which replaces an earlier file.

    Parameters
    ----------
    block : the number of entries in a block.

    Raises
    ------
    DatasetError : two entries have the same id.
    """

    def __init__(self, path: Path, entries: Iterable[Entry], block: int = BLOCK) -> None:
        self.block = block
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)  # private, because URLs may have signatures
        self._connection = sqlite3.connect(path)
        # The file need not survive a crash, because every run writes a new file.
        self._connection.executescript(f"PRAGMA journal_mode = OFF; {_SCHEMA}")
        with self._connection:
            self._connection.executemany(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (_row(position, entry) for position, entry in enumerate(entries)),
            )
        self._refuse_repeated_ids()
        self.contents = self._count()

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.contents.n_images // self.block)

    def labels(self) -> Iterator[str]:
        """Yield each distinct label."""
        labels = "SELECT DISTINCT label FROM entries WHERE label IS NOT NULL"
        for (label,) in self._connection.execute(labels):
            yield label

    def labelled(self) -> Iterator[str]:
        """Yield the id of each entry with a label."""
        for (name,) in self._connection.execute("SELECT id FROM entries WHERE label IS NOT NULL"):
            yield name

    def has_metadata(self, path: Sequence[str]) -> bool:
        """Return whether the metadata of an image has a value at a path of keys."""
        found = self._connection.execute(
            "SELECT 1 FROM entries WHERE CASE WHEN json_valid(metadata) "
            "THEN json_type(metadata, ?) END IS NOT NULL LIMIT 1",
            ("$" + "".join(f'."{key}"' for key in path),),
        )
        return found.fetchone() is not None

    def n_different(self) -> int:
        """Return the number of existing images; equal files count as one image."""
        return len(np.unique(self._contents))

    def largest_label(self) -> str:
        """Return the label with the most images."""
        return largest_label(self._connection)

    def labels_and_groups(self) -> tuple[Integers, Integers]:
        """Return the label codes (n,), −1 without a label, and the groups (n,) of existing images.

        Only equal files count as copies here. Near-duplicates, and equal pictures in different
        files, are found later, after decoding.
        """
        found = self._connection.execute(
            f"SELECT {code_of('label')}, {code_of('group_name')} FROM entries WHERE size >= 0"  # noqa: S608 - no value in it
            " ORDER BY position"
        )
        labels, named = np.fromiter(found, dtype=(np.int64, 2)).T
        return labels, united(len(labels), [pairs_of_equal(named), pairs_of_equal(self._contents)])

    @property
    def _contents(self) -> NDArray[np.int64]:
        """The code of each existing image, (n,); images with equal content have equal codes.

        If two files have the same size, their first bytes are read. If the first bytes are also
        equal, the whole files are read.
        """
        with _Files() as files:
            keys = [
                files.digest(place_of(*place), _HEAD_BYTES) if is_shared else row.to_bytes(8, "big")
                for row, (*place, is_shared) in enumerate(self._connection.execute(_SIZES))
            ]
            n_alike = Counter(keys)
            keys = [
                files.digest(found, None) if n_alike[key] > 1 and found.size > _HEAD_BYTES else key
                for key, found in zip(keys, self._places(), strict=True)
            ]
        return np.unique(np.array(keys, dtype=object), return_inverse=True)[1].astype(np.int64)

    def _places(self) -> Iterator[Place]:
        for *place, _ in self._connection.execute(_SIZES):
            yield place_of(*place)

    def blocks(self) -> Iterator[Block]:
        """Yield all entries in blocks, in the order of the source.

        An entry with an invalid id, label, group or source is added to the failures of its block.
        """
        rows = self._connection.cursor().execute(
            "SELECT position, id, label, group_name, source, path, offset, size, changed_ns, box,"
            " version FROM entries ORDER BY position"
        )
        for number, group in groupby(rows, key=lambda row: row[0] // self.block):
            members = list(group)
            ids = tuple(member[1] for member in members)
            found = ((member[1], _why_refused(*member[1:5])) for member in members)
            failures = {name: why for name, why in found if why is not None}
            places = tuple(place_of(*member[5:]) for member in members)
            yield Block(number, ids, places, failures)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _refuse_repeated_ids(self) -> None:
        try:
            self._connection.execute("CREATE UNIQUE INDEX by_id ON entries (id)")
        except sqlite3.IntegrityError as error:
            repeated = "SELECT id FROM entries GROUP BY id HAVING count(*) > 1"
            (n_repeated,) = self._connection.execute(
                f"SELECT count(*) FROM ({repeated})"  # noqa: S608 - no value in it
            ).fetchone()
            examples = [
                f"{name!r} in {' and in '.join(self._origins(name))}"
                for (name,) in self._connection.execute(f"{repeated} ORDER BY id LIMIT {N_SHOWN}")
            ]
            belong = "id belongs" if n_repeated == 1 else "ids belong"
            raise DatasetError(
                f"{n_repeated:,} {belong} to more than one image: {'; '.join(examples)}"
                f"{'; …' if n_repeated > N_SHOWN else ''}. Give every image its own id."
            ) from error

    def _origins(self, name: str) -> list[str]:
        rows = self._connection.execute(
            "SELECT origin FROM entries WHERE id = ? ORDER BY position LIMIT 2", (name,)
        )
        return [origin for (origin,) in rows]

    def _count(self) -> Contents:
        return Contents(
            *self._connection.execute(
                "SELECT count(*), count(label), count(DISTINCT label), coalesce(sum(size < 0), 0),"
                " coalesce(sum(max(size, 0)), 0) FROM entries"
            ).fetchone()
        )


class _Files:
    """Reads and hashes images; the last file stays open, because it can contain the next image."""

    def __init__(self) -> None:
        self._path, self._file = "", cast("BinaryIO", BytesIO())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def digest(self, place: Place, n_bytes: int | None) -> bytes:
        """Return a hash of the image's content.

        The version of a remote image is hashed instead; if there is no version, the URL is hashed.
        """
        content = place.path.encode() if not place.version else place.version.encode()
        if not place.is_remote:
            with suppress(OSError):  # the error is reported when the image is embedded
                content = self._read(place, n_bytes)
        named = f"{place.size} {place.box} ".encode()
        return hashlib.sha256(named + content).digest()

    def _read(self, place: Place, n_bytes: int | None) -> bytes:
        if place.path != self._path:
            self._file.close()
            self._path, self._file = "", place.opened()
            self._path = place.path
        self._file.seek(place.offset or 0)
        return self._file.read(place.size if n_bytes is None else min(n_bytes, place.size))


def place_of(
    path: str, offset: int | None, size: int, changed_ns: int, box: str | None, version: str
) -> Place:
    """Return the place that is stored in a row of the catalogue."""
    part = None if box is None else tuple(json.loads(box))
    return Place(path, offset, size, changed_ns, part, version)


def _why_refused(
    item_id: str, label: str | None, group: str | None, source: str | None
) -> Failure | None:
    """Return the reason why an entry breaks the rules for texts of items; None if it does not."""
    for name, text, check, advice in (
        ("id", item_id, check_item_id, "Give the image another id, or rename it."),
        ("label", label, check_label, "Correct it."),
        ("group", group, check_text, "Correct it."),
        ("source", source, check_text, "Correct it."),
    ):
        try:
            if text:
                check(text)
        except ValueError as error:
            return Failure(f"Invalid{name.title()}", f"The {name} {error}. {advice}")
    return None


def _row(position: int, entry: Entry) -> tuple[object, ...]:
    place, metadata = entry.place, json.dumps(dict(entry.metadata), sort_keys=True)
    if "\\ud" in metadata:  # a surrogate: maybe unpaired
        require_unicode(json.dumps(entry.metadata, ensure_ascii=False), entry.origin)
    return (
        position,
        entry.id,
        place.path,
        place.offset,
        place.size,
        place.changed_ns,
        None if place.box is None else json.dumps(place.box),
        place.version,
        entry.label,
        metadata,
        entry.origin,
        entry.group,
        entry.source,
    )


_GROUPS = """
DROP TABLE IF EXISTS groups;
CREATE TABLE groups (position INTEGER PRIMARY KEY, number INTEGER NOT NULL);
"""

Integers = NDArray[np.int64]


def largest_label(connection: sqlite3.Connection) -> str:
    """Return the label with the most images; there must be one."""
    found = connection.execute(
        "SELECT label FROM entries WHERE label IS NOT NULL GROUP BY label"
        " ORDER BY count(*) DESC, label LIMIT 1"
    ).fetchone()
    return str(found[0])


def code_of(column: str) -> str:
    """Return SQL that converts the values of a column to integer codes; −1 for NULL."""
    return (
        f"CASE WHEN {column} IS NULL THEN -1"
        f" ELSE dense_rank() OVER (ORDER BY {column} NULLS FIRST) END"
    )


def note_groups(connection: sqlite3.Connection, store: ShardStore, n_blocks: int) -> None:
    """Write the table ``groups``: the position and the group number of each embedded image."""
    found = connection.execute(
        f"SELECT position, {code_of('hash')}, {code_of('group_name')}"  # noqa: S608 - no value in it
        " FROM entries JOIN embedded USING (id) ORDER BY position"
    )
    positions, contents, named = np.fromiter(found, dtype=(np.int64, 3)).T
    alike = _alike(connection, store, n_blocks, positions)
    pairs = [pairs_of_equal(contents), pairs_of_equal(named), *alike]
    numbers = united(len(positions), pairs)
    connection.executescript(_GROUPS)
    connection.executemany(
        "INSERT INTO groups VALUES (?, ?)", zip(positions.tolist(), numbers.tolist(), strict=True)
    )


def _alike(
    connection: sqlite3.Connection, store: ShardStore, n_blocks: int, positions: Integers
) -> Sequence[Integers]:
    """Return pairs of images with equal thumbnails, and pairs of near-duplicates."""
    known: list[Fingerprint | None] = [None] * len(positions)
    pixels = np.full(len(positions), -1, dtype=np.int64)
    codes: dict[bytes, int] = {}
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # Pillow releases the GIL
        for shard in track(store.all(n_blocks), "near-duplicates", n_blocks):
            marks = ",".join("?" * len(shard.ids))
            rows = connection.execute(
                f"SELECT id, position FROM entries WHERE id IN ({marks})",  # noqa: S608
                shard.ids,
            )
            position_of = dict(rows.fetchall())
            places = np.searchsorted(positions, [position_of[name] for name in shard.ids]).tolist()
            made = pool.map(_fingerprint, shard.thumbnails)
            for place, thumbnail, one in zip(places, shard.thumbnails, made, strict=True):
                if one is None:
                    continue
                known[place] = one
                # The thumbnail of a small picture is lossless, so equal thumbnails mean equal
                # pictures.
                pixels[place] = codes.setdefault(
                    hashlib.sha256(thumbnail.data).digest(), len(codes)
                )
    return [pairs_of_equal(pixels), pairs_among(known)]


def _fingerprint(thumbnail: Thumbnail) -> Fingerprint | None:
    """Return the fingerprint of a thumbnail; None for an empty thumbnail."""
    if not thumbnail.data:
        return None
    with Image.open(io.BytesIO(thumbnail.data)) as image:
        return fingerprint(np.asarray(image.convert("RGB")))
