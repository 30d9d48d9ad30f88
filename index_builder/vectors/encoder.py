"""Embedding images that are at hand; `index_builder.indexing` is for collections of any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.vectors.halves import Halves
from index_builder.vectors.images import CPU_BATCH, ImageVectors, Seen, libraries
from index_builder.vectors.store import Vector, VectorFile
from model_store.encoder.contract import Embeddings, Encoder
from model_store.encoder.forwarding import ForwardingEncoder
from model_store.processors import PROVIDERS

GPU_BATCH = 64


def batch_size(encoder: Encoder) -> int:
    """Images of every batch; part of the recipe, as arithmetic may depend on it."""
    return CPU_BATCH if encoder.provider == PROVIDERS["cpu"] else GPU_BATCH


def recipe(encoder: Encoder) -> str:
    """Return a text of everything that shards depend on beside their images."""
    return f"1 {encoder.fingerprint} {encoder.provider} {batch_size(encoder)}"


class StoredEncoder(ForwardingEncoder):
    """An encoder that knows the images it has seen, and neither decodes nor encodes them again.

    Its embedding of an image is the same to the last bit, whether it is known or not.

    Parameters
    ----------
    encoder : one that encodes on a single thread, see `open_encoder`.
    known : where vectors are kept; None keeps none.
    halves : of the encoder; then the features of its trunk are what is known of an image.
    """

    def __init__(
        self, encoder: Encoder, known: VectorFile | None = None, halves: Halves | None = None
    ) -> None:
        super().__init__(encoder)
        self._halves = halves
        if halves is None:
            self._vectors = ImageVectors(
                self._whole,
                f"{recipe(encoder)} {libraries()}",
                encoder.metadata.input,
                batch_size(encoder),
                known,
            )
        else:
            self._vectors = halves.trunk.vectors(known)

    def encode_known(
        self, images: NDArray[np.uint8], contents: Sequence[bytes] | None
    ) -> Embeddings:
        """Embed ``images`` (B, H, W, 3) uint8 with these ``contents``, as far as not known."""
        return self._embeddings(self._vectors.of_prepared(images, contents))

    def embedded(
        self, images: LabelledImages, description: str, seen: Seen | None
    ) -> Iterator[tuple[NDArray[np.int64], Embeddings]]:
        """Give positions and embeddings of ``images``, some at a time and in order."""
        for positions, vectors in self._vectors.of(images, description, seen):
            yield positions, self._embeddings(vectors)

    def close(self) -> None:
        """Release the encoder, and close the file."""
        self.real.close()
        if self._vectors.known is not None:
            self._vectors.known.close()

    def _whole(self, images: NDArray[np.uint8]) -> Vector:
        found = self.real.encode(images)
        return np.hstack([found.mean, found.variance, found.features])

    def _embeddings(self, vectors: Vector) -> Embeddings:
        if self._halves is not None:
            return self._halves.head.embeddings(vectors)
        mean, variance, features = np.split(vectors, [self.dim, 2 * self.dim], axis=1)
        return Embeddings(*map(np.ascontiguousarray, (mean, variance, features)))


def stored(encoder: Encoder) -> StoredEncoder:
    """Return ``encoder`` itself where it knows images, else one that knows none."""
    return encoder if isinstance(encoder, StoredEncoder) else StoredEncoder(encoder)


def embedded(
    encoder: Encoder, images: LabelledImages, description: str, seen: Seen | None = None
) -> Iterator[tuple[NDArray[np.int64], Embeddings]]:
    """Give positions and embeddings of ``images``, some at a time and in order.

    Parameters
    ----------
    encoder : a `StoredEncoder` encodes only images that it does not know.
    seen : told of each image that had to be decoded.
    """
    return stored(encoder).embedded(images, description, seen)


def embed_all(encoder: Encoder, images: LabelledImages, description: str) -> Embeddings:
    """Embeddings of all ``images``, without their features, which are many and large."""
    mean = np.empty((len(images), encoder.dim), dtype=np.float32)
    variance = np.empty_like(mean)
    for positions, found in embedded(encoder, images, description):
        mean[positions], variance[positions] = found.mean, found.variance
    return Embeddings(mean, variance, np.empty((len(images), 0), dtype=np.float32))


def embed_with_features(
    encoder: Encoder, images: LabelledImages, description: str, seen: Seen | None = None
) -> Embeddings:
    """Return embeddings of ``images`` with their features, all in memory."""
    return Embeddings.concatenate(
        [found for _, found in embedded(encoder, images, description, seen)]
    )
