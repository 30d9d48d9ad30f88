"""Returns vectors that were computed earlier, with the interface of an encoder."""

from __future__ import annotations

import numpy as np

from index_builder.vectors.table import VectorTable
from model_store.encoder.contract import Embeddings, Encoder, EncoderMetadata, Inputs
from model_store.errors import DatasetError


class PassedVectors:
    """An encoder that takes rows of ``table`` as input, instead of images.

    Parameters
    ----------
    encoder : the encoder that computed the vectors.
    table : the vectors, with a variance if the encoder has a posterior.

    Raises
    ------
    DatasetError : the vectors do not fit the encoder.
    """

    def __init__(self, encoder: Encoder, table: VectorTable) -> None:
        vectors = table.described("the gallery's encoder")
        n_features = vectors.n_features or vectors.dim
        posterior = encoder.metadata.posterior
        if (vectors.dim, n_features) != (encoder.dim, encoder.n_features):
            raise DatasetError(
                f"{table.path.name} has means of {vectors.dim} numbers and features of "
                f"{n_features}; the gallery's encoder makes {encoder.dim} and "
                f"{encoder.n_features}. Give vectors of the gallery's encoder."
            )
        if posterior != "deterministic" and not vectors.with_variance:
            raise DatasetError(
                f"{table.path.name} has no variance, and the gallery's encoder has a posterior "
                f"({posterior}). Add the variance to the file."
            )
        self.fingerprint = encoder.fingerprint
        self.provider, self.placement = encoder.provider, None
        self.dim, self.n_features = encoder.dim, encoder.n_features
        self.metadata = EncoderMetadata(vectors, posterior)
        self._stops = np.cumsum(vectors.sizes)[:2]

    def encode(self, images: Inputs, at_once: int | None = None) -> Embeddings:  # noqa: ARG002
        """Embed rows (B, n) of the table."""
        mean, variance, features = np.split(images, self._stops, axis=1)
        if not variance.shape[1]:
            variance = np.zeros_like(mean)
        return Embeddings(
            np.ascontiguousarray(mean),
            np.ascontiguousarray(variance),
            np.ascontiguousarray(features if features.shape[1] else mean),
        )

    def close(self) -> None:
        """There is nothing to close."""
