"""A trained encoder in torch, as search and calibration want one: nothing is exported.

What an export would answer is the same, which tests of the export show; here hundreds of encoders
are measured once and thrown away.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from index_builder.networks import MetricEncoder
from index_builder.networks.features import trunk_fingerprint
from index_builder.posteriors.stored import Posterior
from index_builder.vectors.encoder import StoredEncoder
from index_builder.vectors.halves import Halves, Trunk
from index_builder.vectors.images import ImageVectors
from index_builder.vectors.store import Vector, VectorFile
from model_store.encoder.contract import Embeddings, EncoderMetadata
from model_store.processors import PROVIDERS

BATCH = 32
"""Images that the trunk is given together: more of them no longer stay in a processor's cache."""


class FeaturesOf(Trunk, Protocol):
    """A trunk, by torch or by ONNX Runtime."""

    def features(self, images: NDArray[np.uint8]) -> Vector:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8."""


@dataclass(frozen=True, slots=True)
class TorchTrunk:
    """The trunk of an encoder in evaluation mode."""

    encoder: MetricEncoder

    def features(self, images: NDArray[np.uint8]) -> Vector:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8."""
        with torch.no_grad():
            found: Vector = self.encoder.features(torch.from_numpy(images)).numpy()
        return found

    def vectors(self, known: VectorFile | None) -> ImageVectors:
        """Features of images, which ``known`` keeps."""
        maker = f"torch {torch.__version__} {trunk_fingerprint(self.encoder)}"
        return ImageVectors(self.features, maker, self.encoder.preprocessing, BATCH, known)


@dataclass(frozen=True, slots=True)
class PosteriorHead:
    """Features to embeddings, by a posterior."""

    posterior: Posterior

    def embeddings(self, features: Vector) -> Embeddings:
        """Embeddings of images with these ``features`` (B, F)."""
        with torch.no_grad():
            mean, variance = self.posterior.predict(torch.from_numpy(features))
        return Embeddings(mean.numpy(), np.ascontiguousarray(variance.numpy()), features)


class TorchEncoder:
    """Trunk and posterior, as `model_store.encoder.contract.Encoder` has them."""

    provider = PROVIDERS["cpu"]
    placement = None

    def __init__(
        self, encoder: MetricEncoder, trunk: FeaturesOf, head: PosteriorHead, posterior: str
    ) -> None:
        self._trunk, self._head = trunk, head
        self.metadata = EncoderMetadata(encoder.preprocessing, posterior)
        self.dim = encoder.last_layer.out_features
        self.n_features = encoder.trunk.n_features
        of_layer = encoder.last_layer.weight.detach().numpy().tobytes()
        made_of = f"{trunk_fingerprint(encoder)} {posterior} ".encode() + of_layer
        self.fingerprint = hashlib.sha256(made_of).hexdigest()

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:  # noqa: ARG002 - all at once
        """Embed ``images`` (B, H, W, 3) uint8."""
        return self._head.embeddings(self._trunk.features(images))

    def close(self) -> None:
        """Nothing is held."""


def searchable(
    encoder: MetricEncoder, trunk: FeaturesOf, posterior: Posterior, name: str, known: VectorFile
) -> StoredEncoder:
    """Return an encoder with a posterior that computes no image's features twice.

    Parameters
    ----------
    encoder : in evaluation mode.
    trunk : its own.
    name : of the posterior.
    known : where features are kept.
    """
    head = PosteriorHead(posterior)
    return StoredEncoder(TorchEncoder(encoder, trunk, head, name), known, Halves(trunk, head))
