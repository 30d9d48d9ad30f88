"""Corrupted versions of calibration queries, which teach the outlier score."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import corrupted, corrupted_vectors
from model_store.encoder.contract import Encoder

N_CORRUPTED = 1_000
"""Calibration queries that are corrupted, at most."""

CorruptedQueries = tuple[LabelledImages, NDArray[np.int64]]
"""Corrupted queries (n,), and their places among the matched ones."""


def corrupted_as_fits(encoder: Encoder, images: LabelledImages, seed: int) -> LabelledImages:
    """Corrupt images, or vectors where the encoder takes vectors."""
    corrupt = corrupted if encoder.metadata.takes_images else corrupted_vectors
    return corrupt(images, seed)


def corrupted_queries(
    encoder: Encoder, matched: LabelledImages, seed: int, n_most: int = N_CORRUPTED
) -> CorruptedQueries:
    """Corrupt some of the matched queries."""
    chosen = np.random.default_rng(seed).permutation(len(matched))[:n_most]
    return corrupted_as_fits(encoder, matched, seed).subset(chosen), chosen
