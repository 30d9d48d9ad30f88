"""Reads another system's table of vectors; the items' fields come from the table or a manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.image_files import LeftOut, require_readable
from index_builder.datasets.images import Pixels
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.prepare import require_direction
from index_builder.indexing.sources.manifest import COLUMNS, Line, entry_of, lines_of, without_label
from index_builder.progress import console
from index_builder.vectors.table import VectorTable
from model_store.errors import CorruptImage, DatasetError

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
            console.print(
                f"{where}: {', '.join(sorted(unused))} is not used, because the source has "
                "vectors and no images.",
                markup=False,
                soft_wrap=True,
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
            console.print(f"left out: {entries[number].id}: {reason}", markup=False, soft_wrap=True)
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
