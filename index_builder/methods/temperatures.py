"""Methods with a temperature: the norm of the embedding, and a predicted loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import EmbeddingNormConfig, LossPredictionConfig
from index_builder.datasets import Splits
from index_builder.methods.learned_variances import trained_on_features
from index_builder.methods.method import Method, Report, Trained
from index_builder.methods.validation import Tempered, chosen_temperature, votes
from index_builder.networks import MetricEncoder
from index_builder.networks.features import all_features
from index_builder.objectives import LossPrediction
from index_builder.posteriors.baselines import EmbeddingNormPosterior
from index_builder.posteriors.learned_variances import LossHead, PredictedLossPosterior

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


CLASSES = {"embedding_norm": EmbeddingNorm, "loss_prediction": LossPredictor}
"""The methods of this module by name."""
