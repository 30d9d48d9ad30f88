"""Tables of columns of equal length, rows of numbers in half precision, and arrays on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Rows: TypeAlias = slice | Sequence[int] | NDArray[np.integer[Any]] | NDArray[np.bool_]
"""Rows of a table: a slice, positions, or a mask of all rows."""

SHARED = {"shared": True}
"""Metadata of a field that is not a column: it has one value for all rows."""


@dataclass(frozen=True, slots=True)
class Table:
    """Base class of frozen dataclasses whose fields are columns.

    A column is an array, a tuple or a table. An unknown column is None. A field with the metadata
    `SHARED` is not a column.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Cities(Table):
    ...     names: tuple[str, ...]
    ...     heights: NDArray[np.float64]
    ...     unit: str = field(metadata=SHARED)
    >>> cities = Cities(("Bern", "Chur", "Genf"), np.array([540.0, 593.0, 375.0]), "m")
    >>> cities.at(cities.heights > 500).names
    ('Bern', 'Chur')
    """

    def __len__(self) -> int:
        return len(next(column for _, column in self._columns() if column is not None))

    def at(self, rows: Rows) -> Self:
        """Return some of the rows, in the order of ``rows``."""
        if not isinstance(rows, slice):
            found = np.asarray(rows)
            rows = np.flatnonzero(found) if found.dtype == bool else found.astype(np.int64)
        kind: Any = type(self)
        parts = {
            name: _at(getattr(self, name), rows) if is_column else getattr(self, name)
            for name, is_column in _fields_of(kind)
        }
        chosen: Self = kind(**parts)
        return chosen

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of one or more tables.

        Raises
        ------
        ValueError : a value for all rows differs between the tables.
        """
        columns = {}
        for field in fields(cls):
            values = [getattr(part, field.name) for part in parts]
            if "shared" not in field.metadata:
                columns[field.name] = _concatenated(values)
            elif any(value != values[0] for value in values):
                raise ValueError(f"{field.name} differs between tables of {cls.__name__}")
        return replace(parts[0], **columns)

    def _columns(self) -> Iterator[tuple[str, Any]]:
        for field in fields(self):
            if "shared" not in field.metadata:
                yield field.name, getattr(self, field.name)


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, bool], ...]:  # noqa: ANN401 - a type of tables
    """Return the name of each field, and whether the field is a column."""
    return tuple((field.name, "shared" not in field.metadata) for field in fields(kind))


def _at(column: Any, rows: slice | NDArray[np.int64]) -> Any:  # noqa: ANN401 - of any kind
    if column is None:
        return None
    if isinstance(column, Table):
        return column.at(rows)
    if isinstance(column, tuple) and not isinstance(rows, slice):
        return tuple(map(column.__getitem__, rows.tolist()))
    return column[rows]


def _concatenated(columns: Sequence[Any]) -> Any:  # noqa: ANN401 - of any kind
    first = columns[0]
    if first is None:
        return None
    if isinstance(first, Table):
        return type(first).concatenate(columns)
    return (
        tuple(chain.from_iterable(columns)) if isinstance(first, tuple) else np.concatenate(columns)
    )


_HALF, _SCALE = np.dtype("<f2"), np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class HalfRows(Table):
    """Rows of numbers, stored in half precision after division by the row's largest magnitude s.

    The error of a number x is at most 2⁻¹¹ |x| or 2⁻²⁵ s, whichever is larger.

    Attributes
    ----------
    values : (n, k) float16, within ±1.
    scales : (n,) float32.
    """

    values: NDArray[np.float16]
    scales: NDArray[np.float32]

    @classmethod
    def of(cls, rows: NDArray[np.float32]) -> HalfRows:
        """Round ``rows`` (n, k)."""
        scales = np.abs(rows).max(axis=1, initial=0).astype(_SCALE)
        divisors = np.where(scales > 0, scales, 1).astype(np.float32)
        return cls((rows / divisors[:, None]).astype(_HALF), scales)

    def whole(self) -> NDArray[np.float32]:
        """Return the rows (n, k)."""
        rows: NDArray[np.float32] = self.values.astype(np.float32) * self.scales[:, None]
        return rows

    def to_bytes(self) -> list[bytes]:
        """Return each row as bytes: its scale, then its numbers."""
        return [
            scale.tobytes() + row.tobytes()
            for scale, row in zip(self.scales, self.values, strict=True)
        ]

    @classmethod
    def from_bytes(cls, rows: Sequence[bytes]) -> HalfRows:
        """Parse one or more rows of equal length, as written by `to_bytes`."""
        scales = [np.frombuffer(row[: _SCALE.itemsize], _SCALE) for row in rows]
        values = [np.frombuffer(row[_SCALE.itemsize :], _HALF) for row in rows]
        return cls(np.stack(values), np.concatenate(scales))


READ_BYTES = 2**20
"""Maximum size of a file that is read whole; a larger file is memory-mapped. A mapped file stays
open, and a process may load thousands of small files."""


def load_rows(path: Path) -> NDArray[Any]:
    """Load an array that `numpy.save` wrote; a large array is memory-mapped."""
    found: NDArray[Any] = np.load(path, mmap_mode="r" if _is_large(path) else None)
    return found


def load_bytes(path: Path) -> NDArray[np.uint8]:
    """Load the bytes of a file; a large file is memory-mapped."""
    if _is_large(path):
        return np.asarray(np.memmap(path, mode="r"))
    return np.fromfile(path, np.uint8)


def _is_large(path: Path) -> bool:
    return path.stat().st_size > READ_BYTES


class RowFile:
    """Writes an array part by part, with the same bytes as `numpy.save`.

    A full disk raises `OSError`; with a memory map, a full disk would kill the process.

    Parameters
    ----------
    n_rows, shape, dtype : the whole array has the shape (n_rows, *shape) and this type.
    """

    def __init__(self, path: Path, n_rows: int, *shape: int, dtype: DTypeLike) -> None:
        self._dtype, self._shape, self._missing = np.dtype(dtype), shape, n_rows
        self._file = path.open("wb")
        header = {
            "descr": np.lib.format.dtype_to_descr(self._dtype),
            "fortran_order": False,
            "shape": (n_rows, *shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def add(self, rows: NDArray[Any]) -> None:
        """Write the next rows, (n, *shape)."""
        if rows.shape[1:] != self._shape or len(rows) > self._missing:
            raise ValueError(f"{rows.shape=}, wanted at most {(self._missing, *self._shape)}")
        self._missing -= len(rows)
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._file.close()
        if error is None and self._missing:
            raise ValueError(f"{self._missing} rows are missing")
