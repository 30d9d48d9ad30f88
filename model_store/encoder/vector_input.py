"""Vectors as input: embeddings that an external encoder has computed from images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VectorInput:
    """The input row of an image: mean, optional variance and optional features.

    Attributes
    ----------
    made_by : name of the encoder that makes the vectors.
    dim : number D of dimensions of the mean.
    with_variance : whether a variance with D numbers follows the mean. If no variance follows, the
        variance is zero.
    n_features : number F of features at the end of the row; None if the mean also serves as the
        features.
    """

    made_by: str
    dim: int
    with_variance: bool = False
    n_features: int | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The lengths of mean, variance and features in a row."""
        return self.dim, self.dim * self.with_variance, self.n_features or 0

    @property
    def shape(self) -> tuple[int]:
        """The shape of the encoder's input for one image."""
        return (sum(self.sizes),)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """The data type of the encoder's input."""
        return np.dtype(np.float32)

    @property
    def n_bytes(self) -> int:
        """Bytes of a row."""
        return 4 * sum(self.sizes)

    @property
    def smallest_side(self) -> None:
        """None: vectors need no decoding."""

    def __call__(self, row: Vectors) -> Vectors:
        """Return a row unchanged, because it needs no preparation."""
        return row
