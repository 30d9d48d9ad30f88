"""Variances of a gallery's items on disk: whole while small, then in half the bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NORMS_FILE = "norms.npy"
VARIANCES_FILE = "variances.npy"
SCALES_FILE = "variance_scales.npy"

HALF_ROUNDING = 2.0**-11
"""Relative rounding error of a variance in float16, of those above 2⁻¹⁴ of the item's largest;
smaller ones are off by at most 2⁻²⁴ of the largest."""


def write_variances(
    directory: Path, norms: NDArray[np.float32], variances: NDArray[np.float32], *, half: bool
) -> None:
    """Write the variances (N, D) of embeddings whose means have ``norms`` (N,).

    Whole: as they are. ``half``: relative to the squared norm and to a power of two for each item,
    which brings the largest of its variances to between ½ and 1, in float16 (`HALF_ROUNDING`).
    """
    np.save(directory / NORMS_FILE, norms)
    if not half:
        np.save(directory / VARIANCES_FILE, variances.astype(np.float32))
        return
    scales = np.empty(len(variances), dtype=np.float32)
    stored = np.lib.format.open_memmap(
        directory / VARIANCES_FILE, mode="w+", dtype=np.float16, shape=variances.shape
    )
    for start in range(0, len(variances), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        relative = variances[part] / norms[part, None] ** 2
        largest = np.maximum(relative.max(axis=1), np.finfo(np.float32).tiny)
        scales[part] = np.exp2(np.ceil(np.log2(largest)))
        stored[part] = relative / scales[part, None]
    stored.flush()
    np.save(directory / SCALES_FILE, scales)


_AT_ONCE = 65_536


class Variances:
    """What `write_variances` wrote into ``directory``, memory-mapped."""

    def __init__(self, directory: Path) -> None:
        self._norms = np.load(directory / NORMS_FILE, mmap_mode="r")
        self._stored = np.load(directory / VARIANCES_FILE, mmap_mode="r")
        half = self._stored.dtype == np.float16
        self._scales = np.load(directory / SCALES_FILE, mmap_mode="r") if half else None

    def lengths(self) -> dict[str, int]:
        """How many items each file holds."""
        files = {NORMS_FILE: self._norms, VARIANCES_FILE: self._stored, SCALES_FILE: self._scales}
        return {name: len(file) for name, file in files.items() if file is not None}

    def norms(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Norms ‖m‖ of the means, (...)."""
        return np.asarray(self._norms[rows])

    def relative(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Variance of each dimension relative to the squared norm, v / ‖m‖², (..., D)."""
        if self._scales is None:
            whole: NDArray[np.float32] = self._stored[rows] / self._norms[rows][..., None] ** 2
            return whole
        scaled: NDArray[np.float32] = self._stored[rows] * self._scales[rows][..., None]
        return scaled

    def dispersions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Variance of each item relative to the squared norm, Σ_d v_d / ‖m‖², (...)."""
        if self._scales is None:
            total: NDArray[np.float32] = self._stored[rows].sum(-1) / self._norms[rows] ** 2
            return total
        sums: NDArray[np.float32] = self._stored[rows].sum(-1, dtype=np.float32)
        scaled: NDArray[np.float32] = sums * self._scales[rows]
        return scaled
