"""A variance head, trained with the Bayesian triplet loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import BayesianTripletConfig
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.networks import MetricEncoder
from index_builder.objectives import BayesianTripletLoss
from index_builder.posteriors import VarianceHead, VarianceHeadPosterior
from index_builder.posteriors.variance_head import UNIT_MEAN


@dataclass(frozen=True)
class BayesianTriplet(Method):
    """Bayesian triplet loss (Warburg et al. 2021)."""

    settings: BayesianTripletConfig

    def objective(
        self,
        config: EncoderConfig,
        encoder: MetricEncoder,
        labels: Tensor,
        generator: torch.Generator,
    ) -> BayesianTripletLoss:
        """Return the loss with an untrained variance head."""
        settings, dim = self.settings, encoder.last_layer.out_features
        prior_variance = settings.prior_variance or 1 / dim
        head = VarianceHead(
            encoder.trunk.n_features,
            dim,
            isotropic=settings.variance == "isotropic",
            initial_variance=prior_variance,
        )
        return BayesianTripletLoss(
            head,
            prior=settings.prior,
            prior_variance=prior_variance,
            kl_weight=settings.kl_weight,
            margin=settings.margin,
            mining=settings.mining,
            normalised=settings.normalised,
            n_triplets=settings.n_triplets,
            generator=generator,
        )

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[VarianceHeadPosterior, Report]:
        """Return the trained last layer and variance head."""
        (trained,) = members
        layer = trained.encoder.last_layer.state_dict(prefix="last_layer.")
        unit_mean = torch.tensor(self.settings.normalised)
        state = {**layer, **trained.learned, UNIT_MEAN: unit_mean}
        return VarianceHeadPosterior.from_state(state), {}
