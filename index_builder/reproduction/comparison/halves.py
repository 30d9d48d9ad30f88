"""Adapters that let search and calibration use a trained torch encoder without exporting it.

The comparison measures hundreds of encoders once and deletes them, so exporting them would cost too
much time. The tests of the export show that an exported encoder gives the same results.
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
from index_builder.vectors.halves import Halves, TrunkHalf
from index_builder.vectors.images import ImageVectors
from index_builder.vectors.store import Vector, VectorFile
from model_store.encoder.contract import Embeddings, EncoderMetadata
from model_store.processors import PROVIDERS

BATCH = 32
"""Batch size of the trunk; larger batches do not fit into the cache of a CPU."""


class FeaturesOf(TrunkHalf, Protocol):
    """A trunk that runs in torch or in ONNX Runtime."""

    def features(self, images: NDArray[np.uint8]) -> Vector:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8."""


@dataclass(frozen=True, slots=True)
class TorchTrunk:
    """The trunk of an encoder, which must be in evaluation mode."""

    encoder: MetricEncoder

    def features(self, images: NDArray[np.uint8]) -> Vector:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8."""
        with torch.no_grad():
            found: Vector = self.encoder.features(torch.from_numpy(images)).numpy()
        return found

    def vectors(self, known: VectorFile | None) -> ImageVectors:
        """Return the features of images as `ImageVectors`, with the cache ``known``."""
        maker = f"torch {torch.__version__} {trunk_fingerprint(self.encoder)}"
        return ImageVectors(self.features, maker, self.encoder.preprocessing, BATCH, known)


@dataclass(frozen=True, slots=True)
class PosteriorHead:
    """A head that uses a posterior to compute embeddings from features."""

    posterior: Posterior

    def embeddings(self, features: Vector) -> Embeddings:
        """Return the embeddings of images from their ``features`` (B, F)."""
        with torch.no_grad():
            mean, variance = self.posterior.predict(torch.from_numpy(features))
        return Embeddings(mean.numpy(), np.ascontiguousarray(variance.numpy()), features)


class TorchEncoder:
    """A trunk and a posterior with the interface of `model_store.encoder.contract.Encoder`."""

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
        """Do nothing: there is nothing to close."""


def searchable(
    encoder: MetricEncoder, trunk: FeaturesOf, posterior: Posterior, name: str, known: VectorFile
) -> StoredEncoder:
    """Return an encoder with a posterior; the encoder caches the features of images.

    Parameters
    ----------
    encoder : the encoder in evaluation mode.
    trunk : the trunk of the encoder.
    name : name of the posterior.
    known : the cache of features.
    """
    head = PosteriorHead(posterior)
    return StoredEncoder(TorchEncoder(encoder, trunk, head, name), known, Halves(trunk, head))
