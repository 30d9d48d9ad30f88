"""Stand-ins that obey the same laws as what they stand for."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from model_store.encoder.contract import Embeddings, EncoderMetadata
from model_store.images import Preprocessing


class FakeEncoder:
    """A fixed random projection of the pixels: instant, deterministic, and injective enough."""

    def __init__(self, dim: int = 6, side: int = 5, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.dim = dim
        self.n_features = 3 * side * side
        self.metadata = EncoderMetadata(Preprocessing(side, side), "fake")
        self.provider = "FakeExecutionProvider"
        self.placement = None
        self._weight = generator.standard_normal((self.n_features, dim)).astype(np.float32)
        self.fingerprint = hashlib.sha256(self._weight.tobytes()).hexdigest()

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        pixels = images.reshape(len(images), -1).astype(np.float32)
        features = pixels / np.float32(255) + np.float32(0.1)
        # Row by row, so that an image's answer cannot depend on its batch.
        mean = np.stack([row @ self._weight for row in features])
        variance = np.stack([(row**2) @ np.abs(self._weight) for row in features])
        return Embeddings(mean, variance * np.float32(1e-3), features)

    def close(self) -> None:
        pass
