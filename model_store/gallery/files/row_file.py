"""Arrays on disk, written part by part; variances in float32 or float16."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
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

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._file.close()
        if error is None and self._missing:
            raise ValueError(f"{self._missing} rows are missing")


NORMS_FILE = "norms.npy"
VARIANCES_FILE = "variances.npy"
SCALES_FILE = "variance_scales.npy"

HALF_ROUNDING = 2.0**-11
"""Maximum relative rounding error of a variance in float16. This maximum is valid if the variance
is at least 2⁻¹³ times the item's largest variance. If the variance is smaller, its absolute error
is at most 2⁻²⁴ times the largest variance."""


class VarianceWriter(ExitStack):
    """A context manager that writes the variances of a gallery's items, part by part.

    With ``half``, an item's variances are divided by the squared norm and by a power of two, and
    stored in float16 (see `HALF_ROUNDING`). The power of two is chosen for each item so that the
    item's largest stored variance is between ½ and 1. Without ``half``, variances are stored
    unchanged in float32.

    Parameters
    ----------
    n_items, dim : N and D of the whole gallery.
    """

    def __init__(self, directory: Path, n_items: int, dim: int, *, half: bool) -> None:
        super().__init__()
        dtype = np.float16 if half else np.float32
        variances = RowFile(directory / VARIANCES_FILE, n_items, dim, dtype=dtype)
        self._variances = self.enter_context(variances)
        self._scales: RowFile | None = None
        if half:
            scales = RowFile(directory / SCALES_FILE, n_items, dtype=np.float32)
            self._scales = self.enter_context(scales)

    def add(self, norms: NDArray[np.float32], variances: NDArray[np.float32]) -> None:
        """Write the variances (n, D) of n items; ``norms`` (n,) are the norms of their means."""
        if self._scales is None:
            self._variances.add(variances)
            return
        relative = variances / norms[:, None] ** 2
        largest = np.maximum(relative.max(axis=1), np.finfo(np.float32).tiny)
        scales = np.exp2(np.ceil(np.log2(largest)))
        self._scales.add(scales)
        self._variances.add(relative / scales[:, None])


class Variances:
    """Reads the files that `VarianceWriter` wrote; large files are memory-mapped."""

    def __init__(self, directory: Path) -> None:
        self._norms = load_rows(directory / NORMS_FILE)
        self._stored = load_rows(directory / VARIANCES_FILE)
        half = self._stored.dtype == np.float16
        self._scales = load_rows(directory / SCALES_FILE) if half else None

    def lengths(self) -> dict[str, int]:
        """Return the number of items in each file, by file name."""
        files = {NORMS_FILE: self._norms, VARIANCES_FILE: self._stored, SCALES_FILE: self._scales}
        return {name: len(file) for name, file in files.items() if file is not None}

    def norms(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the norms ‖m‖ (...) of the means."""
        return np.asarray(self._norms[rows])

    def relative(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each variance, divided by the item's squared norm: v / ‖m‖², (..., D)."""
        if self._scales is None:
            whole: NDArray[np.float32] = self._stored[rows] / self._norms[rows][..., None] ** 2
            return whole
        scaled: NDArray[np.float32] = self._stored[rows] * self._scales[rows][..., None]
        return scaled

    def total_variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each total variance, divided by the item's squared norm: Σ_d v_d / ‖m‖², (...)."""
        if self._scales is None:
            total: NDArray[np.float32] = self._stored[rows].sum(-1) / self._norms[rows] ** 2
            return total
        sums: NDArray[np.float32] = self._stored[rows].sum(-1, dtype=np.float32)
        scaled: NDArray[np.float32] = sums * self._scales[rows]
        return scaled
