"""Learned variances: a network predicts the variance of an embedding from the features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import (
    BayesianTripletConfig,
    FaceEmbeddingConfig,
    HedgedInstanceConfig,
    LossPredictionConfig,
)
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.networks import MetricEncoder
from index_builder.networks.features import all_features
from index_builder.objectives import (
    BayesianTripletLoss,
    HedgedInstanceLoss,
    MutualLikelihoodLoss,
    Objective,
)
from index_builder.posteriors.learned_variances import (
    UNIT_MEAN,
    UncertaintyModule,
    UncertaintyModulePosterior,
    VarianceHead,
    VarianceHeadPosterior,
)
from index_builder.training import train


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


@dataclass(frozen=True)
class FaceEmbeddings(Method):
    """Probabilistic face embeddings (Shi & Jain 2019)."""

    settings: FaceEmbeddingConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[UncertaintyModulePosterior, Report]:
        """Train an uncertainty module on the features of the training images."""
        encoder = members[0].encoder
        generator = torch.Generator().manual_seed(config.seed)
        module = UncertaintyModule.beside(encoder, generator)
        loss = MutualLikelihoodLoss(module)
        report = trained_on_features(encoder, loss, splits, config, self.settings, generator)
        posterior = UncertaintyModulePosterior(encoder.last_layer, module, unit_mean=True)
        return posterior, report


def trained_on_features(
    encoder: MetricEncoder,
    objective: Objective,
    splits: Splits,
    config: EncoderConfig,
    settings: FaceEmbeddingConfig | LossPredictionConfig,
    generator: torch.Generator,
) -> Report:
    """Train the parameters of ``objective`` beside a frozen encoder; return the epochs."""
    encoder.requires_grad_(requires_grad=False)
    features = all_features(encoder, splits.training)
    training = {"epochs": settings.epochs, "learning_rate": settings.learning_rate}
    history = train(
        encoder,
        objective,
        lambda rows: features[rows],
        torch.from_numpy(splits.training.label_codes()),
        config.training.model_copy(update=training),
        generator,
    )
    return {"epochs": [asdict(epoch) for epoch in history]}


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


CLASSES = {"bayesian_triplet": BayesianTriplet, "pfe": FaceEmbeddings, "hib": HedgedInstance}
"""The methods of this module by name."""
