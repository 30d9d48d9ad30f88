"""Vectors that another system has made of images, with their items beside them or in one file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from index_builder.datasets.other_formats import OtherFormats
from index_builder.indexing.blocks import Entry, Place
from index_builder.indexing.sources.manifest import Line, entry_of, lines_of, without_label
from index_builder.vectors.table import VectorTable
from model_store.errors import DatasetError

ROWS_FILE = "vectors.f32"


@dataclass(frozen=True, slots=True)
class VectorSource:
    """The vectors of a table, in its order.

    An item has what a manifest says of an image, but for ``path`` and ``bbox``; its id is the
    number of its row, from 0, where it has none.

    Attributes
    ----------
    items : a manifest with a line for each row; None where the table itself says what is known.
    labelled : see `ImageManifest`.
    """

    table: VectorTable
    items: Path | None = None
    labelled: bool = True

    def entries(self, scratch: Path, _others: OtherFormats, /) -> Iterator[Entry]:
        """One entry for each row, which is laid down in ``scratch`` as float32.

        Raises
        ------
        DatasetError : a row or a line is not what it should be, or there are more of the one.
        """
        changed_ns = self.table.path.stat().st_mtime_ns
        path = scratch / ROWS_FILE
        size, number = 4 * sum(self.table.sizes), 0
        lines = None if self.items is None else lines_of(self.items)
        with path.open("wb") as file:
            for rows, fields in self.table.rows():
                file.write(rows.tobytes())
                file.flush()
                for known in repeat({}, len(rows)) if fields is None else fields:
                    line: Line = f"{self.table.path.name}, row {number + 1}", known
                    if lines is not None:
                        line = self._next(lines, number)
                    place = Place(str(path), number * size, size, changed_ns)
                    entry = entry_of(line[1], line[0], place, str(number))
                    yield entry if self.labelled else without_label(entry)
                    number += 1
        if lines is not None and next(lines, None) is not None:
            assert self.items is not None  # noqa: S101 - or there were no lines
            raise DatasetError(
                f"{self.items.name} has more lines than {self.table.path.name} has rows "
                f"({number:,}). Give one line a row, in the same order."
            )

    def _next(self, lines: Iterator[Line], number: int) -> Line:
        line = next(lines, None)
        if line is None:
            assert self.items is not None  # noqa: S101 - or there were no lines
            raise DatasetError(
                f"{self.items.name} has {number:,} lines, and {self.table.path.name} more rows. "
                "Give one line a row, in the same order."
            )
        return line
