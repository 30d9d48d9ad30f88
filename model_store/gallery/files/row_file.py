"""Writes an array to disk part by part, and loads arrays."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is None and self._missing:
            raise ValueError(f"{self._missing} rows are missing")
