"""Loss prediction: a head on a trained encoder predicts the retrieval loss of an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import LossPredictionConfig
from index_builder.datasets import Splits
from index_builder.methods.embedding_norm import TEMPERATURES
from index_builder.methods.method import Method, Report, Trained
from index_builder.methods.votes import chosen_temperature, votes
from index_builder.networks.features import all_features
from index_builder.objectives import LossPrediction
from index_builder.posteriors import LossHead, PredictedLossPosterior
from index_builder.training.loop import train


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
        criterion = votes(encoder, posterior, splits, config.seed)
        value, search = chosen_temperature(posterior, TEMPERATURES, criterion)
        return posterior.at(value), {**report, "temperature": value, "temperature_search": search}
