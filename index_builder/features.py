"""Features of many images, in blocks that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from index_builder.datasets import LabelledImages
from index_builder.networks import MetricEncoder
from index_builder.posteriors import FeatureBlocks
from index_builder.progress import track

_PIXELS = 800_000
"""Of a block: a thousand small images, or fifteen photographs."""

_PIXELS_AT_ONCE = 100_000
"""That a processor computes at a time: of more, the layers' results do not stay in its cache, and
the system has to clear new memory for each. Up to four times faster."""

_CACHED_BYTES = 2**32
"""Features that take no more (4 GiB) are computed once and kept."""


def feature_blocks(encoder: MetricEncoder, images: LabelledImages) -> Iterator[Tensor]:
    """Features (n, F) of ``images``, in order; the encoder must be in evaluation mode."""
    preprocessing = encoder.preprocessing
    size = max(1, _PIXELS // (preprocessing.height * preprocessing.width))
    batches = images.batches(preprocessing, size)
    for _, batch in track(batches, "features", -(-len(images) // size)):
        with torch.no_grad():  # closed before the yield: else the caller would lose its gradients
            features = _computed(encoder, torch.from_numpy(batch))
        yield features


def _computed(encoder: MetricEncoder, images: Tensor) -> Tensor:
    if encoder.pixel_mean.is_cuda:
        return encoder.features(images)
    height, width = images.shape[1:3]
    parts = torch.split(images, max(1, _PIXELS_AT_ONCE // (height * width)))
    return torch.cat([encoder.features(part) for part in parts])


def all_features(encoder: MetricEncoder, images: LabelledImages) -> Tensor:
    """Features (N, F) of ``images``; the encoder must be in evaluation mode."""
    features = torch.empty(len(images), encoder.trunk.n_features)
    start = 0
    for block in feature_blocks(encoder, images):
        features[start : start + len(block)] = block
        start += len(block)
    return features


def repeatable_blocks(encoder: MetricEncoder, images: LabelledImages) -> FeatureBlocks:
    """`feature_blocks` that can be asked for again; kept in memory where they are small."""
    if len(images) * encoder.trunk.n_features * 4 <= _CACHED_BYTES:
        kept = list(feature_blocks(encoder, images))
        return lambda: kept
    return lambda: feature_blocks(encoder, images)
