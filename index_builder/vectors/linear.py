"""Features of an encoder with a linear last layer, as arrays of NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from index_builder.arrays import FeatureBlocks
from index_builder.datasets import LabelledImages

_CACHED_BYTES = 2**32
"""Maximum size in bytes of the features that are kept in memory for one data set (4 GiB)."""


class LinearEncoder(Protocol):
    """A trunk and a linear last layer h = W φ + b, as arrays of NumPy.

    Attributes
    ----------
    weight, bias : (D, F), (D,) float32.
    """

    @property
    def weight(self) -> NDArray[np.float32]:
        """Weight W."""

    @property
    def bias(self) -> NDArray[np.float32]:
        """Bias b."""

    def blocks(self, images: LabelledImages) -> Iterator[NDArray[np.float32]]:
        """Yield the features (n, F) of ``images`` in order."""


def features_of(encoder: LinearEncoder, images: LabelledImages) -> NDArray[np.float32]:
    """Return the features (N, F) of ``images``."""
    found = np.empty((len(images), encoder.weight.shape[1]), dtype=np.float32)
    start = 0
    for block in encoder.blocks(images):
        found[start : start + len(block)] = block
        start += len(block)
    return found


def repeatable_blocks(encoder: LinearEncoder, images: LabelledImages) -> FeatureBlocks:
    """Return a function; each call starts a pass over the features.

    If all features need at most `_CACHED_BYTES`, they are kept in memory. Otherwise each pass
    computes the features again.
    """
    if len(images) * encoder.weight.shape[1] * 4 <= _CACHED_BYTES:
        kept = list(encoder.blocks(images))
        return lambda: kept
    return lambda: encoder.blocks(images)
