"""Learned uncertainty: a network predicts variances or losses, or the norm is a concentration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import (
    BayesianTripletConfig,
    EmbeddingNormConfig,
    FaceEmbeddingConfig,
    HedgedInstanceConfig,
    LossPredictionConfig,
)
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.methods.validation import Tempered, chosen_temperature, votes
from index_builder.networks import MetricEncoder
from index_builder.networks.encoder import all_features
from index_builder.objectives import (
    BayesianTripletLoss,
    HedgedInstanceLoss,
    LossPrediction,
    MutualLikelihoodLoss,
    Objective,
)
from index_builder.posteriors.baselines import EmbeddingNormPosterior
from index_builder.posteriors.learned_variances import (
    UNIT_MEAN,
    LossHead,
    PredictedLossPosterior,
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


TEMPERATURES = np.logspace(-3, 3, 25)
"""Temperatures that validation tries."""


@dataclass(frozen=True)
class EmbeddingNorm(Method):
    """The von Mises-Fisher distribution whose natural parameter is the embedding.

    The method is from Kirchhof et al. 2022. Objectives that compare distributions (el_nivmf, el_vmf
    and similar, mc_info_nce) train the norm to be a concentration. With other objectives, the norm
    is possibly unrelated to the uncertainty.
    """

    settings: EmbeddingNormConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[EmbeddingNormPosterior, Report]:
        """Return the trained last layer.

        The temperature comes from the configuration or from a validation.
        """
        (trained,) = members
        posterior = EmbeddingNormPosterior.of(trained.encoder.last_layer)
        asked = self.settings.temperature
        value, report = temperature_of(posterior, asked, trained.encoder, splits, config.seed)
        return posterior.at(value), report


def temperature_of(
    posterior: Tempered,
    asked: float | Literal["validation"],
    encoder: MetricEncoder,
    splits: Splits,
    seed: int,
) -> tuple[float, Report]:
    """Return the temperature that is configured or chosen by a validation, and a report."""
    if asked != "validation" or not len(splits.validation):
        value = 1.0 if asked == "validation" else asked
        return value, {"temperature": value}
    criterion = votes(partial(all_features, encoder), posterior, splits, seed)
    value, search = chosen_temperature(posterior, TEMPERATURES, criterion)
    return value, {"temperature": value, "temperature_search": search}


@dataclass(frozen=True)
class LossPredictor(Method):
    """A head that predicts the order of the losses (Kirchhof et al. 2024), or their values."""

    settings: LossPredictionConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[PredictedLossPosterior, Report]:
        """Train a head on the features of the training images, and choose its temperature."""
        encoder, settings = members[0].encoder, self.settings
        generator = torch.Generator().manual_seed(config.seed)
        head = LossHead(encoder.trunk.n_features, generator)
        loss = LossPrediction(head, settings.form)
        epochs = trained_on_features(encoder, loss, splits, config, settings, generator)
        posterior = PredictedLossPosterior(encoder.last_layer, head)
        asked = settings.temperature
        value, report = temperature_of(posterior, asked, encoder, splits, config.seed)
        return posterior.at(value), epochs | report


CLASSES = {
    "bayesian_triplet": BayesianTriplet,
    "pfe": FaceEmbeddings,
    "hib": HedgedInstance,
    "embedding_norm": EmbeddingNorm,
    "loss_prediction": LossPredictor,
}
"""The methods of this module by name."""
