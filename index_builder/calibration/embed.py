"""Embedding images that are at hand; `index_builder.indexing` is for collections of any size."""

from __future__ import annotations

import numpy as np

from index_builder.datasets import LabelledImages
from index_builder.progress import track
from model_store.encoder.contract import Embeddings, Encoder

BATCH = 128
"""Images that are embedded together."""


def embed_all(encoder: Encoder, images: LabelledImages, description: str) -> Embeddings:
    """Embeddings of all ``images``, without their features, which are many and large."""
    mean = np.empty((len(images), encoder.dim), dtype=np.float32)
    variance = np.empty_like(mean)
    batches = images.batches(encoder.metadata.preprocessing, BATCH)
    for positions, batch in track(batches, description, -(-len(images) // BATCH)):
        embeddings = encoder.encode(batch)
        mean[positions], variance[positions] = embeddings.mean, embeddings.variance
    return Embeddings(mean, variance, np.empty((len(images), 0), dtype=np.float32))


def embed_with_features(encoder: Encoder, images: LabelledImages, description: str) -> Embeddings:
    """Embeddings of ``images``, features included: for as many as fit into memory."""
    batches = images.batches(encoder.metadata.preprocessing, BATCH)
    n_batches = -(-len(images) // BATCH)
    return Embeddings.concatenate(
        [encoder.encode(batch) for _, batch in track(batches, description, n_batches)]
    )
