"""Conversion of samples to eight bits, if the samples have more bits, a sign or a float type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[Any]

_TOPS = (255.0, 1023.0, 4095.0, 65_535.0)
"""Largest values of the usual depths: 8 bits, 10 and 12 bits (cameras), and 16 bits.

14 bits are not in the list, because 14-bit values may also come from a dark 16-bit picture.
"""

_MIN_SHARE = 1 / 16
"""Minimum share of a depth's range that the values of a picture must use. If the values use less,
the picture would be black, so the values are stretched."""

_ABOVE_ONE = 2.0
"""Float samples up to this value are treated as samples from 0 to 1 with some brighter
highlights."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear scale from sample values to eight bits.

    Attributes
    ----------
    low, top : the sample values that become 0 and 255.
    stretched : whether ``low`` and ``top`` are the extremes of the picture.
    """

    low: float
    top: float
    stretched: bool

    def __call__(self, values: Samples) -> NDArray[np.uint8]:
        """Return ``values`` as eight bits; NaN becomes 0."""
        finite = np.nan_to_num(
            values.astype(np.float32), nan=self.low, posinf=self.top, neginf=self.low
        )
        span = max(self.top - self.low, 1e-30)
        scaled = (finite - np.float32(self.low)) * np.float32(255 / span)
        return np.asarray(scaled.clip(0, 255).round(), dtype=np.uint8)

    @property
    def warning(self) -> str:
        """One sentence for the user about the information that the conversion loses."""
        if self.stretched:
            return (
                "More than eight bits per channel were rescaled to eight; the values from "
                f"{self.low:g} to {self.top:g} were stretched."
            )
        return "More than eight bits per channel were rescaled to eight."


def scale_of(dtype: np.dtype[Any], low: float, high: float) -> Scale:
    """Return the scale for samples with a given type and given extremes.

    Files rarely use their whole declared range. For example, 32-bit files may contain 8-bit values,
    and 16-bit files may contain the 12-bit values of a camera. So the smallest usual depth that
    contains the values is used. If no usual depth contains the values, or if the picture would be
    black, the values are stretched: the smallest value becomes 0, and the largest value becomes
    255.

    Parameters
    ----------
    low, high : the smallest and the largest finite sample.
    """
    if low < 0 or not np.isfinite((low, high)).all():
        return Scale(low, high, stretched=True)
    if dtype.kind == "f":
        tops = [(1.0, _ABOVE_ONE), *((top, top) for top in _TOPS)]
    else:
        largest = float(np.iinfo(dtype).max)
        tops = [(top, top) for top in _TOPS if top < largest] + [(largest, largest)]
    top = next((top for top, most in tops if high <= most), high)
    if 0 < high < top * _MIN_SHARE:
        return Scale(low if low < high else 0.0, high, stretched=True)
    return Scale(0.0, top, stretched=top == high and top not in dict(tops))


def extremes(values: Samples) -> tuple[float, float]:
    """Return the smallest and the largest finite sample; 0 and 0 if no sample is finite."""
    if values.dtype.kind == "f":
        values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
