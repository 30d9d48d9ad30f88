"""Encoders with their posterior, for export: images to mean, variance and features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from index_builder.networks import MetricEncoder
from index_builder.networks.small_cnn import SmallCNN
from index_builder.posteriors.baselines import DropoutPosterior
from index_builder.posteriors.stored import Posterior
from model_store.encoder.contract import EncoderInput


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
