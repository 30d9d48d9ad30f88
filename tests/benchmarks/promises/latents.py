"""An encoder of pictures that carry a number, which stands for a latent whose truth is known."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from model_store.encoder import Embeddings, EncoderMetadata
from model_store.images import Preprocessing

N_BITS = 16
SIDE = 16
"""Of a picture, in pixels: 4 × 4 cells, one for each bit, of 4 × 4 pixels. Cells this large still
carry their bit when the picture is blurred or full of noise."""

_DARK, _BRIGHT = 40, 215
_CELLS = 4
_MIDDLE = 127.5

SPOILT = 1.5
"""Standard deviations of latents between labels by which a spoilt picture misses its own."""

Pixels = NDArray[np.uint8]


def pictures(numbers: NDArray[np.int64]) -> Pixels:
    """Draw numbers (N,) below 2¹⁶ as pictures (N, 16, 16, 3).

    Red carries the bits, green their complement, and blue is bright in one corner, which tells
    which side is up.
    """
    bits = (numbers[:, None] >> np.arange(N_BITS)) & 1
    corner = np.zeros_like(bits)
    corner[:, 0] = 1
    cells = np.stack([bits, 1 - bits, corner], axis=-1).reshape(-1, _CELLS, _CELLS, 3)
    enlarged = cells.repeat(SIDE // _CELLS, axis=1).repeat(SIDE // _CELLS, axis=2)
    return np.where(enlarged > 0, _BRIGHT, _DARK).astype(np.uint8)


def read_pictures(images: Pixels) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read the numbers (B,) of pictures (B, 16, 16, 3), and which of these are spoilt (B,)."""
    width = SIDE // _CELLS
    cells = images.reshape(-1, _CELLS, width, _CELLS, width, 3).mean(axis=(2, 4))
    corners = cells[:, [0, 0, -1, -1], [0, -1, 0, -1], 2].argmax(axis=1)
    for corner, turns in ((1, -1), (2, 1), (3, 2)):
        turned = np.flatnonzero(corners == corner)
        cells[turned] = np.rot90(cells[turned], -turns, axes=(1, 2))
    bits = (cells[..., 0] > cells[..., 1]).reshape(len(images), N_BITS)
    numbers = (bits.astype(np.int64) << np.arange(N_BITS)).sum(axis=1)
    return numbers, (images != pictures(numbers)).any(axis=(1, 2, 3))


class TableEncoder:
    """An `Encoder` that looks up what it says of a picture in a table.

    A spoilt picture lies `SPOILT` away from what it showed, in a direction of its own, with twice
    the uncertainty: the encoder knows a part of what it does not know.

    Parameters
    ----------
    mean, variance : (N, D) of the pictures by their number.
    features : (N, F).
    seed : of the directions in which spoilt pictures miss.
    """

    def __init__(
        self,
        mean: NDArray[np.float32],
        variance: NDArray[np.float32],
        features: NDArray[np.float32],
        seed: int,
    ) -> None:
        self._table = Embeddings(mean, variance, features)
        self._seed = seed
        self.dim, self.n_features = mean.shape[1], features.shape[1]
        self.metadata = EncoderMetadata(Preprocessing(SIDE, SIDE), "table")
        self.provider = "TableExecutionProvider"
        self.placement = None
        self.fingerprint = hashlib.sha256(mean.tobytes() + features.tobytes()).hexdigest()

    def encode(self, images: Pixels, at_once: int | None = None) -> Embeddings:
        """Embed ``images`` (B, 16, 16, 3)."""
        numbers, spoilt = read_pictures(images)
        mean, variance = self._table.mean[numbers], self._table.variance[numbers]
        features = self._table.features[numbers]
        for row in np.flatnonzero(spoilt):
            generator = np.random.default_rng([self._seed, int(numbers[row])])
            for values in (mean, features):
                noise = generator.standard_normal(values.shape[1]).astype(np.float32)
                values[row] += SPOILT * np.linalg.norm(values[row]) * noise / values.shape[1] ** 0.5
            variance[row] *= 4
        return Embeddings(mean, variance, features)

    def close(self) -> None:
        """Hold nothing that must be let go of."""
