"""Encodes a block in batches of equal size, and makes its shard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.indexing.blocks import Failure, PreparedBlock
from index_builder.indexing.shards import Shard
from index_builder.vectors.encoder import batch_size
from index_builder.vectors.opened import encoder_on_cpu
from model_store.encoder.contract import Embeddings, Encoder, Inputs
from model_store.encoder.onnx import OnnxEncoder, choose_provider
from model_store.gallery import Thumbnail
from model_store.processors import ProviderChoice

Encode = Callable[[PreparedBlock], Embeddings]
"""A function that returns the means and variances of a block's images, in the order of the ids."""


_NO_NUMBER = Failure(
    "EncodingFailed", "The encoder's embedding of the image is not finite, or zero."
)


def open_encoder(path: Path, provider: ProviderChoice = "auto") -> OnnxEncoder:
    """Open the encoder in ``path`` for several threads that encode whole batches.

    Each batch runs on one thread. So no thread waits for another thread, and sums do not depend on
    the number of processors. On a CPU, all steps of a build share the encoder.
    """
    if choose_provider(provider, path.read_bytes()) == "cpu":
        return encoder_on_cpu(path)
    return OnnxEncoder(path, provider, threads=1)


def embed(
    prepared: PreparedBlock, encoder: Encoder, digest: str, encode: Encode | None = None
) -> Shard:
    """Encode a block; leave out unreadable images, and images whose embedding is invalid.

    Parameters
    ----------
    digest : see `Block.digest`.
    encode : function that is called instead of the encoder, for example a cache. Its results must
        be bit-identical to the results of the encoder.
    """
    if encode is None:
        mean, variance = _encoded(prepared.images, encoder)
    else:
        embeddings = encode(prepared)
        mean, variance = embeddings.mean, embeddings.variance
    sound = np.isfinite(mean).all(1) & np.isfinite(variance).all(1) & (mean != 0).any(1)
    failures = dict(prepared.failures)
    for row, name in enumerate(prepared.ids):
        if not sound[row]:
            failures.setdefault(name, _NO_NUMBER)
    rows = [row for row, name in enumerate(prepared.ids) if name not in failures]
    thumbnails = [prepared.thumbnails[row] for row in rows]
    return Shard(
        prepared.number,
        digest,
        tuple(prepared.ids[row] for row in rows),
        mean[rows],
        variance[rows],
        tuple(Thumbnail(*one) for one in thumbnails if one is not None),
        tuple(prepared.hashes[row] for row in rows),
        failures,
        tuple(prepared.previews[row] for row in rows),
        losses={name: said for name, said in prepared.losses.items() if name not in failures},
    )


def _encoded(images: Inputs, encoder: Encoder) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Encode ``images`` (n, H, W, 3) in batches; the last batch is padded with zeros."""
    size = batch_size(encoder)
    means, variances = [], []
    for start in range(0, len(images), size):
        batch = images[start : start + size]
        n_images = len(batch)
        if n_images < size:
            blank = np.zeros((size - n_images, *images.shape[1:]), dtype=images.dtype)
            batch = np.concatenate([batch, blank])
        embeddings = encoder.encode(batch)
        means.append(embeddings.mean[:n_images])
        variances.append(embeddings.variance[:n_images])
    return np.concatenate(means), np.concatenate(variances)
