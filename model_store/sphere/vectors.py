"""Vectors on the unit sphere."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatT = TypeVar("FloatT", bound=np.floating[Any])
"""The data type of the numbers; input and output have the same type."""


def unit_direction(vectors: NDArray[FloatT]) -> NDArray[FloatT]:
    """Scale vectors to length 1; every finite non-zero vector is accurate up to rounding.

    Parameters
    ----------
    vectors : (..., D) of any length. Each vector is first divided by its largest absolute entry, so
        that squares do not overflow or underflow in float32.

    Returns
    -------
    (..., D) unit, in the type of ``vectors``.

    Raises
    ------
    ValueError : a vector is zero or not finite, so it has no direction.
    """
    largest = np.abs(vectors).max(axis=-1, keepdims=True)
    usable = (largest > 0) & np.isfinite(largest)  # NaN fails the first
    if not usable.all():
        first = tuple(np.argwhere(~usable[..., 0])[0].tolist())
        raise ValueError(
            f"{int((~usable).sum())} of {usable.size} vectors are zero or not finite and have no "
            f"direction (first at {first}); the encoder that made them is at fault"
        )
    scaled = vectors / largest
    unit: NDArray[FloatT] = scaled / np.linalg.norm(scaled, axis=-1, keepdims=True)
    return unit
