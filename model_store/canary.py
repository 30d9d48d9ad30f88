"""The canary: a query that shows whether a gallery answers, for the service and for `doctor`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import VectorInput
from model_store.images import encode_thumbnail

CANARY_PICTURE, _ = encode_thumbnail(
    np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
)
"""An image file of random pixels. A usable encoder may have no embedding of a picture of a single
colour, for example if it divides by the standard deviation of the pixels."""


def canary_vector(expected: VectorInput) -> NDArray[Any]:
    """Return the canary (n,) of an encoder of vectors: ones, because zeros have no direction."""
    return np.ones(expected.shape, expected.dtype)
