"""Hedged instance embeddings: means and variances trained together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import HedgedInstanceConfig
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.networks import MetricEncoder
from index_builder.objectives import HedgedInstanceLoss
from index_builder.posteriors import UncertaintyModule, UncertaintyModulePosterior


@dataclass(frozen=True)
class HedgedInstance(Method):
    """Hedged instance embeddings (Oh et al. 2019)."""

    settings: HedgedInstanceConfig

    def objective(
        self,
        config: EncoderConfig,
        encoder: MetricEncoder,
        labels: Tensor,
        generator: torch.Generator,
    ) -> HedgedInstanceLoss:
        """Return the loss with an untrained uncertainty module."""
        return HedgedInstanceLoss(
            UncertaintyModule.beside(encoder, generator),
            kl_weight=self.settings.kl_weight,
            n_samples=self.settings.n_samples,
            generator=generator,
        )

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[UncertaintyModulePosterior, Report]:
        """Return the trained last layer and uncertainty module."""
        (trained,) = members
        layer = trained.encoder.last_layer
        module = UncertaintyModule(layer.in_features, layer.out_features)
        module.load_state_dict(HedgedInstanceLoss.module_state(trained.learned))
        return UncertaintyModulePosterior(layer, module, unit_mean=False), {}
