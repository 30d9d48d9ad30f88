"""Reads tables: Parquet files that contain images, and another system's tables of vectors.

Parquet files with images are, for example, data sets of the Hugging Face hub. The fields of a
vector's item come from the table or from a manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.image_files import (
    LeftOut,
    Reason,
    files_below,
    is_system_file,
    require_readable,
)
from index_builder.datasets.images import Pixels
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.prepare import require_direction
from index_builder.indexing.sources.archive import unpacking
from index_builder.indexing.sources.manifest import (
    COLUMNS,
    Line,
    entry_of,
    lines_of,
    read_box,
    without_label,
)
from index_builder.indexing.sources.places import MISSING
from index_builder.progress import note
from index_builder.vectors.table import VectorTable, opened_parquet
from model_store.errors import CorruptImage, DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

UNPACKED = ".images"
_AT_ONCE = 64
"""Number of rows to read in one step. Each row contains an image."""


@dataclass(frozen=True, slots=True)
class ParquetImages:
    """The rows of one or more Parquet files; each row contains an image.

    The image column contains bytes, or ``{bytes, path}`` as the library `datasets` writes it. Other
    columns are read as in a manifest. The numbers of a ``ClassLabel`` column become names. An
    item's id is the row's ``id``, else the image's ``path``, else the name of the file and the
    number of the row.

    Attributes
    ----------
    paths : the Parquet files, in order.
    labelled : if True, labels define the classes; if False, labels are stored as metadata.
    folder : folder of the files; all other files in the folder are reported as left out. None if
        the source is a file.
    """

    paths: Sequence[Path]
    labelled: bool = True
    folder: Path | None = None

    def entries(self, scratch: Path, left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield an entry for each row; unpack all images to one file, for random access.

        Raises
        ------
        DatasetError : a file is not Parquet, or has no image column.
        """
        unpacked = self._unpacked(scratch)
        self._note_others(left_out)
        start = 0
        for path in self.paths:
            changed_ns = path.stat().st_mtime_ns
            for number, (fields, data, name) in enumerate(_rows(path)):
                origin = f"{path.name}, row {number}"
                box = read_box(fields.get("bbox"), origin)
                place = Place(str(unpacked), start, len(data) or MISSING, changed_ns, box)
                start += len(data)
                entry = entry_of(fields, origin, place, name or f"{path.stem}#{number}")
                yield entry if self.labelled else without_label(entry)

    def _note_others(self, left_out: LeftOut) -> None:
        """Record the other files of the folder as left out."""
        if self.folder is None:
            return
        read = {path.relative_to(self.folder).as_posix() for path in self.paths}
        for name in files_below(self.folder, self.folder, left_out):
            if name not in read:
                system = is_system_file(name)
                left_out.add(name, Reason.system_file if system else Reason.beside_tables)

    def _unpacked(self, scratch: Path) -> Path:
        """Return a file with the images of all rows, in order.

        The name of the file is a hash of the inputs. The file is complete before the first entry is
        yielded, because a decoder can then read it.
        """
        stamps = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        digest = hashlib.sha256(repr(stamps).encode()).hexdigest()
        unpacked = scratch / f"{digest[:16]}{UNPACKED}"
        if unpacked.exists():
            return unpacked
        for left in scratch.glob(f"*{UNPACKED}"):  # made from older inputs
            left.unlink()
        with unpacking(unpacked, ", ".join(path.name for path in self.paths[:3])) as write:
            for path in self.paths:
                for _, data, _ in _rows(path):
                    write(data)
        return unpacked


def _rows(path: Path) -> Iterator[tuple[dict[str, Any], bytes, str | None]]:
    """Yield each row: the fields without the image, the image's bytes, and the image's name."""
    with opened_parquet(path) as opened:
        schema = opened.schema_arrow
        column = image_column(schema)
        if column is None:
            raise DatasetError(
                f"{path.name} has no image column; its columns are {', '.join(schema.names)}."
            )
        classes = _class_names(schema)
        row = 0
        for batch in opened.iter_batches(_AT_ONCE):
            for fields in batch.to_pylist(maps_as_pydicts="strict"):
                data, name = _image(fields.pop(column))
                named = {
                    one: _class_name(classes.get(one), value, f"{path.name}, row {row}: {one!r}")
                    for one, value in fields.items()
                }
                row += 1
                yield named, data, name


def parquet_files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder, sorted.

    If the folder has no Parquet files, the Parquet files of its sub-folder ``data`` are returned.
    """
    for pattern in ("*.parquet", "data/*.parquet"):
        found = sorted(path for path in folder.glob(pattern) if not is_system_file(path.name))
        if found:
            return found
    return []


def holds_images(path: Path) -> bool:
    """Return whether a Parquet file has a column of images.

    Raises
    ------
    DatasetError : see `opened_parquet`.
    """
    with opened_parquet(path) as opened:
        return image_column(opened.schema_arrow) is not None


def image_column(schema: pa.Schema) -> str | None:
    """Return the name of the image column; None for a manifest, which has a column ``path``."""
    from pyarrow import types  # noqa: PLC0415 - an extra

    def holds(kind: pa.DataType) -> bool:
        if not types.is_struct(kind):
            return bool(types.is_binary(kind) or types.is_large_binary(kind))
        parts = {kind.field(place).name: kind.field(place).type for place in range(kind.num_fields)}
        return "bytes" in parts and holds(parts["bytes"])

    if "path" in schema.names:
        return None
    found = [field.name for field in schema if holds(field.type)]
    return "image" if "image" in found else next(iter(found), None)


def _image(value: object) -> tuple[bytes, str | None]:
    """Return the bytes of an image (empty for a missing image), and the image's name."""
    if isinstance(value, dict):
        name = value.get("path")
        return value.get("bytes") or b"", None if name is None else str(name)
    return bytes(value) if isinstance(value, bytes) else b"", None


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return, by column, the class names of each ``ClassLabel`` column of `datasets`."""
    written = (schema.metadata or {}).get(b"huggingface")
    try:
        features = json.loads(written)["info"]["features"] if written else {}
        return {
            name: [str(one) for one in feature["names"]]
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _class_name(names: Sequence[str] | None, value: Any, origin: str) -> Any:  # noqa: ANN401 - a field's
    """Return the name of a class; None for −1, with which `datasets` marks an unknown class.

    Raises
    ------
    DatasetError : no class has the number.
    """
    if names is None or not isinstance(value, int) or value == -1:
        return None if names is not None and value == -1 else value
    if not 0 <= value < len(names):
        raise DatasetError(
            f"{origin} is class {value}, but the column has {len(names)} class names. "
            "Correct the number, or add the name."
        )
    return names[value]


ROWS_FILE = "vectors.f32"

_OF_IMAGES = ("path", "bbox")
"""Fields of a manifest that vectors do not have."""

MOST_TIMES_LONGER = 1e4
"""A vector that is longer than the median by this factor is no vector of the same encoder."""


@dataclass(frozen=True, slots=True)
class VectorSource:
    """The vectors of a table, in the order of the table.

    An item has the same fields as in a manifest, except ``path`` and ``bbox``. The default id is
    the number of the row, from 0.

    Attributes
    ----------
    items : manifest with a line for each row; None if the table itself has the fields.
    labelled, texts : see `ImageManifest`.
    """

    table: VectorTable
    items: Path | None = None
    labelled: bool = True
    texts: Collection[str] = COLUMNS

    def entries(self, scratch: Path, _left_out: LeftOut, /) -> Iterator[Entry]:
        """Yield an entry for each row, after writing the row to ``scratch`` as float32.

        Raises
        ------
        DatasetError : a row or line is invalid, or the manifest has more or fewer lines than the
            table has rows.
        """
        changed_ns = self.table.path.stat().st_mtime_ns
        path = scratch / ROWS_FILE
        size, number = 4 * sum(self.table.sizes), 0
        lines = None if self.items is None else lines_of(self.items, self.texts)
        unused: set[str] = set()
        with path.open("wb") as file:
            for rows, fields in self.table.rows():
                file.write(rows.tobytes())
                file.flush()
                for known in repeat({}, len(rows)) if fields is None else fields:
                    line: Line = f"{self.table.path.name}, row {number + 1}", known
                    if lines is not None:
                        line = self._next(lines, number)
                    place = Place(str(path), number * size, size, changed_ns)
                    unused.update(name for name in _OF_IMAGES if line[1].get(name))
                    entry = entry_of(line[1], line[0], place, str(number))
                    yield entry if self.labelled else without_label(entry)
                    number += 1
        if lines is not None and next(lines, None) is not None:
            assert self.items is not None  # noqa: S101 - or there were no lines
            raise DatasetError(
                f"{self.items.name} has more lines than {self.table.path.name} has rows "
                f"({number:,}). Give each row one line, in the same order."
            )

        if unused:
            where = (self.table.path if self.items is None else self.items).name
            note(
                f"{where}: {', '.join(sorted(unused))} is not used, because the source has "
                "vectors and no images."
            )

    def labelled_vectors(self) -> LabelledImages:
        """Return the rows with their labels, for training; equal rows form a group.

        If the mean of a row is zero, or far longer than the others, the row is left out, and a
        message is shown. Such a row would dominate the covariance of all rows.

        Raises
        ------
        DatasetError : see `entries`. Also raised if an item has no label, if two items have the
            same id, or if vectors have one number.
        TooManyBadImages : see `require_readable`.
        """
        if self.table.sizes[0] < 2:
            raise DatasetError(
                f"The vectors in {self.table.path.name} have one number. A build compares "
                "directions, and needs vectors of two or more numbers."
            )
        with TemporaryDirectory(prefix="vouch-vectors-") as name:
            entries = list(self.entries(Path(name), LeftOut()))
            rows = np.fromfile(Path(name) / ROWS_FILE, "<f4").reshape(len(entries), -1)
        self._require_names(entries)
        sound = self._sound(rows, entries)
        kept = [entries[number] for number in sound]

        def read(row: int, _smallest_side: int | None) -> Pixels:
            found: Pixels = rows[row]
            return found

        sources = tuple(entry.source or "" for entry in kept)
        return LabelledImages(
            tuple(entry.id for entry in kept),
            tuple(str(entry.label) for entry in kept),
            read,
            np.array(sound, np.int64),
            _groups(kept, rows[sound]),
            sources if any(sources) else None,
            metadata=tuple(entry.metadata for entry in kept),
        )

    def _sound(self, rows: NDArray[np.float32], entries: list[Entry]) -> list[int]:
        """Return the rows to train on; show a message for each other row."""
        dim, reasons = self.table.sizes[0], dict[int, str]()
        for number, row in enumerate(rows):
            try:
                require_direction(row, dim)
            except CorruptImage as error:
                reasons[number] = str(error)
        lengths = np.linalg.norm(rows[:, :dim].astype(np.float64), axis=1)
        usable = [number for number in range(len(rows)) if number not in reasons]
        median = float(np.median(lengths[usable])) if usable else 0.0
        for number in usable:
            if lengths[number] > MOST_TIMES_LONGER * median:
                reasons[number] = (
                    f"The norm of the vector is {lengths[number]:.1e}, but the median norm of all "
                    f"vectors is {median:.1e}."
                )
        for number, reason in sorted(reasons.items()):
            note(f"left out: {entries[number].id}: {reason}")
        require_readable({entries[row].id: reason for row, reason in reasons.items()}, len(rows))
        return [number for number in usable if number not in reasons]

    def _require_names(self, entries: list[Entry]) -> None:
        named: dict[str, str] = {}
        for entry in entries:
            if entry.label is None:
                raise DatasetError(
                    f"{entry.origin}: there is no label, but training needs labels. Give each item "
                    "a label, or leave it out and index it later with the trained encoder."
                )
            if entry.id in named:
                raise DatasetError(
                    f"{entry.id!r} is the id of two items: {named[entry.id]}, and {entry.origin}. "
                    "Give each its own id."
                )
            named[entry.id] = entry.origin

    def _next(self, lines: Iterator[Line], number: int) -> Line:
        line = next(lines, None)
        if line is None:
            assert self.items is not None  # noqa: S101 - or there were no lines
            raise DatasetError(
                f"{self.items.name} has {number:,} lines, but {self.table.path.name} has more "
                "rows. Give each row one line, in the same order."
            )
        return line


def _groups(entries: list[Entry], rows: Pixels) -> tuple[str, ...] | None:
    """Return the group of each row; rows that are equal form a group.

    The result is None if no group has more than one row.
    """
    digests = [hashlib.sha256(row.tobytes()).hexdigest() for row in rows]
    names = tuple(entry.group or digest for entry, digest in zip(entries, digests, strict=True))
    return names if len(set(names)) < len(names) else None
