"""Probabilistic face embeddings: variances trained for a frozen encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.posterior import FaceEmbeddingConfig
from index_builder.datasets import Splits
from index_builder.methods.method import Method, Report, Trained
from index_builder.networks.features import all_features
from index_builder.objectives import MutualLikelihoodLoss
from index_builder.posteriors import UncertaintyModule, UncertaintyModulePosterior
from index_builder.training.loop import train


@dataclass(frozen=True)
class FaceEmbeddings(Method):
    """Probabilistic face embeddings (Shi & Jain 2019)."""

    settings: FaceEmbeddingConfig

    def fit(
        self, config: EncoderConfig, members: Sequence[Trained], splits: Splits
    ) -> tuple[UncertaintyModulePosterior, Report]:
        """Train an uncertainty module on the features of the training images."""
        encoder, images = members[0].encoder, splits.training
        generator = torch.Generator().manual_seed(config.seed)
        encoder.requires_grad_(requires_grad=False)
        features = all_features(encoder, images)
        module = UncertaintyModule.beside(encoder, generator)
        training = {"epochs": self.settings.epochs, "learning_rate": self.settings.learning_rate}
        history = train(
            encoder,
            MutualLikelihoodLoss(module),
            lambda rows: features[rows],
            torch.from_numpy(images.label_codes()),
            config.training.model_copy(update=training),
            generator,
        )
        posterior = UncertaintyModulePosterior(encoder.last_layer, module, unit_mean=True)
        return posterior, {"epochs": [asdict(epoch) for epoch in history]}
