"""The input of an encoder that is elsewhere: vectors that it has made of images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VectorInput:
    """One row of numbers for each image: its mean, maybe its variance, maybe its features.

    Attributes
    ----------
    made_by : name of the encoder that makes the vectors.
    dim : D numbers of the mean.
    with_variance : whether D numbers of the variance follow; else it is zero.
    n_features : F numbers of the features, which come last; None where the mean serves for them.
    """

    made_by: str
    dim: int
    with_variance: bool = False
    n_features: int | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The numbers of mean, variance and features in a row."""
        return self.dim, self.dim * self.with_variance, self.n_features or 0

    @property
    def shape(self) -> tuple[int]:
        """The encoder's input for one image."""
        return (sum(self.sizes),)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """The type of the encoder's input."""
        return np.dtype(np.float32)

    @property
    def n_bytes(self) -> int:
        """Bytes of a row."""
        return 4 * sum(self.sizes)

    @property
    def smallest_side(self) -> None:
        """Nothing is decoded, at no fraction of its size."""

    def __call__(self, row: Vectors) -> Vectors:
        """Return a row unchanged: it needs no preparation."""
        return row
