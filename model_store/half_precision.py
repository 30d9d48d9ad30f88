"""Rows of numbers in half precision, each row with a scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.table import Table

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
