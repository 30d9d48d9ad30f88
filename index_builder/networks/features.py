"""Features of many images, in blocks that fit into memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from index_builder.arrays import to_numpy
from index_builder.datasets import LabelledImages
from index_builder.datasets.images import Read
from index_builder.networks import MetricEncoder
from index_builder.progress import track_parts
from index_builder.vectors.encoder import features_of

_PIXELS = 800_000
"""Number of pixels in a block: a thousand small images, or fifteen photographs."""

_PIXELS_AT_ONCE = 100_000
"""Number of pixels that a CPU processes in one batch. With small batches, activations stay in the
cache and memory is reused. This is up to four times faster than with large batches."""

_REMEMBERED_BYTES = 2**28
"""Maximum size in bytes of features that the steps of a build share: 256 MiB, enough for 52,000
photographs."""


@dataclass(slots=True)
class _Remembered:
    """A cache of the features of one trunk; the key is the source and the row of an image.

    A build without training uses the features of the training images three times: to fit the
    whitening, to fit the posterior, and to choose the posterior's prior.
    """

    trunk: str = ""
    rows: dict[tuple[Read, int], Tensor] = field(default_factory=dict)

    def of(self, trunk: str) -> dict[tuple[Read, int], Tensor]:
        """Return the cached features of ``trunk``; features of another trunk are deleted."""
        if trunk != self.trunk:
            self.trunk, self.rows = trunk, {}
        return self.rows


_REMEMBERED = _Remembered()


def feature_blocks(encoder: MetricEncoder, images: LabelledImages) -> Iterator[Tensor]:
    """Features (n, F) of ``images``, in order; the encoder must be in evaluation mode."""
    if encoder.stored_features is not None:
        for _, stored in encoder.stored_features.of(images, "features"):
            yield torch.from_numpy(stored)
        return
    preprocessing = encoder.preprocessing
    size = max(1, _PIXELS // math.prod(preprocessing.shape[:2]))
    known = _REMEMBERED.of(trunk_fingerprint(encoder))
    n_kept = _REMEMBERED_BYTES // (4 * encoder.trunk.n_features)
    for start in track_parts(len(images), size, "features"):
        part = images.at(range(start, min(start + size, len(images))))
        places = [(part.read, int(row)) for row in part.rows]
        if not all(place in known for place in places):
            with torch.no_grad():  # excludes the yield: the caller needs gradients
                features = _computed(encoder, torch.from_numpy(part.prepared(preprocessing)))
            if len(known) + len(places) <= n_kept:
                known.update(zip(places, features, strict=True))
            yield features
        else:
            yield torch.stack([known[place] for place in places])


def trunk_fingerprint(encoder: MetricEncoder) -> str:
    """Return a hash of everything that determines the features: the trunk and its settings."""
    state = encoder.state_dict()
    digest = hashlib.sha256(
        repr((encoder.preprocessing, encoder.pixel_mean.device, encoder.trunk)).encode()
    )
    for name in sorted(name for name in state if not name.startswith("last_layer.")):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _computed(encoder: MetricEncoder, images: Tensor) -> Tensor:
    if encoder.pixel_mean.is_cuda:
        return encoder.features(images)
    parts = torch.split(images, max(1, _PIXELS_AT_ONCE // math.prod(images.shape[1:3])))
    return torch.cat([encoder.features(part) for part in parts])


def all_features(encoder: MetricEncoder, images: LabelledImages) -> Tensor:
    """Features (N, F) of ``images``; the encoder must be in evaluation mode."""
    return torch.from_numpy(features_of(LinearNetwork(encoder), images))


class LinearNetwork:
    """A network as a `LinearEncoder`; the arrays share the memory of its tensors."""

    def __init__(self, encoder: MetricEncoder) -> None:
        self._encoder = encoder

    @property
    def weight(self) -> NDArray[np.float32]:
        """Weight (D, F) of the last layer."""
        return to_numpy(self._encoder.last_layer.weight)

    @property
    def bias(self) -> NDArray[np.float32]:
        """Bias (D,) of the last layer."""
        return to_numpy(self._encoder.last_layer.bias)

    def blocks(self, images: LabelledImages) -> Iterator[NDArray[np.float32]]:
        """Yield the features (n, F) of ``images`` in order."""
        return map(to_numpy, feature_blocks(self._encoder, images))
