"""Objectives of two views of each image, without labels: SimCLR and MCInfoNCE."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from index_builder.objectives.objective import Objective
from index_builder.objectives.of_embeddings import LossOfEmbeddings
from index_builder.objectives.pairs import mean_of, positives_and_negatives
from index_builder.objectives.similarities import info_nce, similarity_loss
from index_builder.objectives.von_mises_fisher import sample_von_mises_fisher

_SHORTEST = 1e-6
"""Minimum length of an embedding; the length has no derivative at zero."""


def simclr(temperature: float) -> Objective:
    """Return InfoNCE of the cosines between two views of each image (Chen et al. 2020)."""

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        return similarity_loss(embeddings, labels, info_nce, temperature)

    return LossOfEmbeddings(loss, "views")


class MonteCarloInfoNceLoss(Objective):
    """InfoNCE between samples of the distributions of two views (Kirchhof et al. 2023).

    The loss is −log 1/S Σ_s exp(κ z_i·z_p) / Σ_{k≠i} exp(κ z_i·z_k). Each z is a sample from the
    von Mises-Fisher distribution of a view. The concentration of a view is the length of its
    embedding; in the paper, a separate network predicts the concentration.

    Parameters
    ----------
    concentration : κ.
    n_samples : S.
    generator : draws the samples.
    """

    sampling = "views"

    def __init__(self, *, concentration: float, n_samples: int, generator: torch.Generator) -> None:
        super().__init__()
        self.concentration = concentration
        self.n_samples = n_samples
        self.generator = generator

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        embeddings = last_layer(features)
        length = embeddings.norm(dim=1).clamp_min(_SHORTEST)
        drawn = sample_von_mises_fisher(
            embeddings / length[:, None], length, self.n_samples, self.generator
        )
        positive, negative = positives_and_negatives(labels)
        anchors, others = positive.nonzero(as_tuple=True)
        logits = self.concentration * drawn @ drawn.mT
        against = logits.masked_fill(~(positive | negative), -torch.inf).logsumexp(2)
        right = logits[:, anchors, others] - against[:, anchors]
        return mean_of(math.log(self.n_samples) - right.logsumexp(0))
