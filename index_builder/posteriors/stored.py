"""Reads a posterior of any kind from its file, and joins it to an encoder for export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn

from index_builder.networks import MetricEncoder
from index_builder.networks.trunk import SmallCNN
from model_store.encoder.contract import EncoderInput

from .baselines import (
    DROPOUT_FORMAT,
    EMBEDDING_NORM_FORMAT,
    ENSEMBLE_FORMAT,
    POINT_FORMAT,
    DropoutPosterior,
    EmbeddingNormPosterior,
    EnsemblePosterior,
    PointPosterior,
)
from .laplace.kronecker_posterior import KRONECKER_FORMAT, KroneckerPosterior
from .laplace.last_layer import LAST_LAYER_FORMAT, LastLayerPosterior
from .learned_variances import (
    PREDICTED_LOSS_FORMAT,
    UNCERTAINTY_MODULE_FORMAT,
    VARIANCE_HEAD_FORMAT,
    PredictedLossPosterior,
    UncertaintyModulePosterior,
    VarianceHeadPosterior,
)


class Posterior(Protocol):
    """A map from features to the mean and variance of the embedding."""

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""

    def save(self, path: Path) -> None:
        """Write it as safetensors."""


FORMATS: Mapping[str, Callable[[dict[str, Tensor]], Posterior]] = {
    LAST_LAYER_FORMAT: lambda tensors: LastLayerPosterior(**tensors),
    KRONECKER_FORMAT: lambda tensors: KroneckerPosterior(**tensors),
    VARIANCE_HEAD_FORMAT: VarianceHeadPosterior.from_state,
    UNCERTAINTY_MODULE_FORMAT: UncertaintyModulePosterior.from_state,
    EMBEDDING_NORM_FORMAT: lambda tensors: EmbeddingNormPosterior(**tensors),
    PREDICTED_LOSS_FORMAT: PredictedLossPosterior.from_state,
    POINT_FORMAT: lambda tensors: PointPosterior(**tensors),
    DROPOUT_FORMAT: lambda tensors: DropoutPosterior(**tensors),
    ENSEMBLE_FORMAT: lambda tensors: EnsemblePosterior(**tensors),
}
"""Constructors of posteriors from tensors, by the format name in the file."""


def load_posterior(path: Path) -> Posterior:
    """Read a posterior of any kind.

    Raises
    ------
    ValueError : the file has none of the known formats.
    """
    with safe_open(path, framework="pt") as file:
        kind = dict(file.metadata() or {}).get("format", "")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
    if kind not in FORMATS:
        known = ", ".join(FORMATS)
        raise ValueError(f"{path.name} is a file of format {kind!r}, wanted one of {known}")
    return FORMATS[kind](tensors)


class ProbabilisticEncoder(nn.Module):
    """An encoder with one network; its posterior needs the features of only one pass."""

    def __init__(self, encoder: MetricEncoder, posterior: Posterior) -> None:
        super().__init__()
        self.encoder = encoder
        self.posterior = posterior

    @property
    def preprocessing(self) -> EncoderInput:
        """The preprocessing of an upright RGB image, or the shape of the input vectors."""
        return self.encoder.preprocessing

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding mean and variance, and features, of ``images`` (B, H, W, 3) uint8."""
        features = self.encoder.features(images)
        mean, variance = self.posterior.predict(features)
        return mean, variance, features


class DropoutEncoder(ProbabilisticEncoder):
    """Monte Carlo dropout; the posterior has fixed masks for the dropout inside the trunk.

    The returned features come from a pass without dropout.
    """

    posterior: DropoutPosterior

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding mean and variance, and features, of ``images`` (B, H, W, 3) uint8."""
        trunk = self.encoder.trunk
        assert isinstance(trunk, SmallCNN)  # noqa: S101 - the configuration allows no other
        pixels = self.encoder.standardised(images)
        passes = trunk.masked_features(pixels, self.posterior.masks)
        return *self.posterior.combine(passes), trunk(pixels)


class EnsembleEncoder(ProbabilisticEncoder):
    """A deep ensemble in one graph.

    The returned features come from the first member. With the features of all M members, the
    outlier detector would be M times slower.
    """

    def __init__(self, members: Sequence[MetricEncoder], posterior: Posterior) -> None:
        super().__init__(members[0], posterior)
        self.others = nn.ModuleList(members[1:])
        self._features = [member.features for member in members]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding mean and variance, and features, of ``images`` (B, H, W, 3) uint8."""
        features = [features_of(images) for features_of in self._features]
        mean, variance = self.posterior.predict(torch.cat(features, dim=1))
        return mean, variance, features[0]
