"""Probabilistic face embeddings: variances learned from pairs of images with the same label."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from index_builder.objectives.objective import Objective
from index_builder.posteriors import UncertaintyModule


class MutualLikelihoodLoss(Objective):
    """The mean negative mutual likelihood score of pairs with the same label (Shi & Jain 2019).

    Only the variances are trained. The encoder is frozen: the means are the normalised embeddings,
    without gradient.

    Parameters
    ----------
    module : gives the variances.
    """

    def __init__(self, module: UncertaintyModule) -> None:
        super().__init__()
        self.module = module

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F); 0 if no two images share a label."""
        with torch.no_grad():
            mean = nn.functional.normalize(last_layer(features))
        variance = self.module(features)
        first, second = torch.triu(labels[:, None] == labels, diagonal=1).nonzero(as_tuple=True)
        if not len(first):
            nothing: Tensor = 0 * variance.sum()
            return nothing
        delta, spread = mean[first] - mean[second], variance[first] + variance[second]
        return -mutual_likelihood_score(delta, spread).mean()


def mutual_likelihood_score(delta: Tensor, variance: Tensor) -> Tensor:
    """Log p(z_i = z_j) for independent Gaussian z_i, z_j (Shi & Jain 2019, Eq. 3), in nats.

    The score is the log density of z_i − z_j at zero: −½ Σ_d [Δ_d² / s_d + log s_d] − D/2 log 2π.

    Parameters
    ----------
    delta : (..., D), Δ = μ_i − μ_j.
    variance : (..., D), s = σ²_i + σ²_j, above zero.

    Returns
    -------
    (...); the values can be negative or positive.
    """
    terms = delta.square() / variance + variance.log() + math.log(2 * math.pi)
    return -0.5 * terms.sum(-1)
