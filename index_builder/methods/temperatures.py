"""Methods with a temperature: the norm of the embedding, and a predicted loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import EmbeddingNormConfig, LossPredictionConfig
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.methods.validation import chosen_temperature, votes
from index_builder.networks.features import all_features
from index_builder.objectives import LossPrediction
from index_builder.posteriors.baselines import EmbeddingNormPosterior
from index_builder.posteriors.learned_variances import LossHead, PredictedLossPosterior
from index_builder.training.loop import train

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
        if self.settings.temperature != "validation":
            value = self.settings.temperature
            return posterior.at(value), {"temperature": value}
        if not len(splits.validation):
            return posterior, {"temperature": 1.0}
        criterion = votes(partial(all_features, trained.encoder), posterior, splits, config.seed)
        value, search = chosen_temperature(posterior, TEMPERATURES, criterion)
        return posterior.at(value), {"temperature": value, "temperature_search": search}


@dataclass(frozen=True)
class LossPredictor(Method):
    """A head that predicts the order of the losses (Kirchhof et al. 2024), or their values."""

    settings: LossPredictionConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[PredictedLossPosterior, Report]:
        """Train a head on the features of the training images, and choose its temperature."""
        encoder, images = members[0].encoder, splits.training
        generator = torch.Generator().manual_seed(config.seed)
        encoder.requires_grad_(requires_grad=False)
        features = all_features(encoder, images)
        head = LossHead(encoder.trunk.n_features, generator)
        training = {"epochs": self.settings.epochs, "learning_rate": self.settings.learning_rate}
        history = train(
            encoder,
            LossPrediction(head, self.settings.form),
            lambda rows: features[rows],
            torch.from_numpy(images.label_codes()),
            config.training.model_copy(update=training),
            generator,
        )
        posterior = PredictedLossPosterior(encoder.last_layer, head)
        report: Report = {"epochs": [asdict(epoch) for epoch in history]}
        if self.settings.temperature != "validation" or not len(splits.validation):
            asked = self.settings.temperature
            value = 1.0 if asked == "validation" else asked
            return posterior.at(value), {**report, "temperature": value}
        criterion = votes(partial(all_features, encoder), posterior, splits, config.seed)
        value, search = chosen_temperature(posterior, TEMPERATURES, criterion)
        return posterior.at(value), {**report, "temperature": value, "temperature_search": search}


CLASSES = {"embedding_norm": EmbeddingNorm, "loss_prediction": LossPredictor}
"""The methods of this module by name."""
