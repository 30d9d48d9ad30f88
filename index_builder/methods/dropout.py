"""Monte Carlo dropout: dropout is also used after training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import MonteCarloDropoutConfig
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.networks import MetricEncoder
from index_builder.networks.dropout import dropout_masks
from index_builder.networks.small_cnn import SmallCNN
from index_builder.posteriors import (
    DropoutEncoder,
    DropoutPosterior,
    Posterior,
    ProbabilisticEncoder,
)

N_PASSES = 20
"""Default number of passes through a trunk with dropout. With this number of passes, the relative
error of a variance is about a third."""


@dataclass(frozen=True)
class MonteCarloDropout(Method):
    """Monte Carlo dropout (Gal & Ghahramani 2016), with the dropout shares of training."""

    settings: MonteCarloDropoutConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[DropoutPosterior, Report]:
        """Return the posterior; if the trunk has dropout, draw a mask for each pass."""
        (trained,) = members
        inside = config.network.dropout_inside
        layer = trained.encoder.last_layer
        posterior = DropoutPosterior(
            layer.weight.detach(),
            layer.bias.detach(),
            torch.tensor(config.network.dropout),
            dropout_masks(
                (self.settings.n_passes or N_PASSES) if inside else 0,
                SmallCNN.hidden_shape if inside else (),
                config.network.dropout,
                torch.Generator().manual_seed(config.seed),
            ),
        )
        return posterior, {"n_passes": len(posterior.masks)}

    def assemble(
        self, encoders: Sequence[MetricEncoder], posterior: Posterior
    ) -> ProbabilisticEncoder:
        """Return an encoder that passes an image through the trunk once for each mask."""
        (encoder,) = encoders
        if isinstance(posterior, DropoutPosterior) and len(posterior.masks):
            return DropoutEncoder(encoder, posterior)
        return super().assemble(encoders, posterior)
