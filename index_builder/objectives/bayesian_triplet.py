"""The Bayesian triplet loss: embeddings are distributions, and a head predicts their variance."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from index_builder.objectives.objective import Objective
from index_builder.objectives.triplets import Mining, mine_triplets
from index_builder.objectives.von_mises_fisher import kl_divergence_to_uniform
from index_builder.posteriors.learned_variances import VarianceHead
from model_store.gaussian import DiagonalGaussian, triplet_margin_moments

Prior = Literal["gaussian", "von_mises_fisher"]

_SMALLEST_VARIANCE = 1e-20
"""Minimum variance of τ. If the three embeddings of a triplet are equal, the variance of τ is zero.
At zero, the square root has no derivative."""


class BayesianTripletLoss(Objective):
    """The mean −log P(τ < −m) of mined triplets, plus a weighted divergence from the prior.

    The loss is that of Warburg et al. 2021, with three corrections. First, the sign of the margin
    is corrected: the positive must be closer than the negative by m, so P(τ < −m) is maximised.
    Second, the Gaussian divergence is summed over the correct axis. Third, the formula of the
    divergence from the uniform distribution on the sphere is corrected. The log of the normal cdf
    is computed directly, because hard triplets would otherwise have no gradient. The loss is an
    evidence lower bound only if ``kl_weight`` is 1.

    Parameters
    ----------
    head : predicts the variances.
    prior : N(0, prior_variance I), or uniform on the sphere with κ = 1 / variance.
    prior_variance : prior variance of each dimension.
    kl_weight : weight of the mean divergence of a minibatch.
    margin : m ≥ 0, in squared distance.
    mining, n_triplets : see `mine_triplets`.
    normalised : whether means are normalised to unit length. If the means are not normalised, the
        divergence from the Gaussian prior limits their lengths (supplement, after Eq. 46).
    generator : draws triplets.
    """

    def __init__(
        self,
        head: VarianceHead,
        *,
        prior: Prior,
        prior_variance: float,
        kl_weight: float,
        margin: float,
        mining: Mining,
        n_triplets: int,
        generator: torch.Generator,
        normalised: bool = True,
    ) -> None:
        super().__init__()
        self.head = head
        self.prior = prior
        self.prior_variance = prior_variance
        self.kl_weight = kl_weight
        self.margin = margin
        self.mining: Mining = mining
        self.n_triplets = n_triplets
        self.normalised = normalised
        self.generator = generator

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        mean = last_layer(features)
        if self.normalised:
            mean = nn.functional.normalize(mean)
        variance = self.head(features)
        triplets = mine_triplets(mean, labels, self.mining, self.n_triplets, self.generator)
        loss = self.kl_weight * self.divergence(mean, variance).mean()
        if len(triplets[0]):
            loss = loss + self.negative_log_likelihood(mean, variance, *triplets).mean()
        return loss

    def negative_log_likelihood(
        self, mean: Tensor, variance: Tensor, anchors: Tensor, positives: Tensor, negatives: Tensor
    ) -> Tensor:
        """Return −log P(τ < −m), (T,), for τ = ‖z_a − z_p‖² − ‖z_a − z_n‖², approximated as normal.

        Parameters
        ----------
        mean, variance : (B, D), moments of the embeddings z.
        anchors, positives, negatives : (T,) rows.
        """
        triplet = [
            DiagonalGaussian(mean[rows], variance[rows]) for rows in (anchors, positives, negatives)
        ]
        expected, spread = triplet_margin_moments(*triplet)
        deviation = spread.clamp_min(_SMALLEST_VARIANCE).sqrt()
        lead = (-self.margin - expected) / deviation
        # In float32, torch's derivative of log_ndtr is wrong for inputs beyond about ±100.
        log_probability: Tensor = torch.special.log_ndtr(lead.double())
        return -log_probability.to(mean)

    def divergence(self, mean: Tensor, variance: Tensor) -> Tensor:
        """KL(embedding ‖ prior) of each image, (B,), in nats."""
        if self.prior == "von_mises_fisher":
            return kl_divergence_to_uniform(1 / variance[:, 0], mean.shape[1])
        return gaussian_divergence(mean, variance, self.prior_variance)


def gaussian_divergence(mean: Tensor, variance: Tensor, prior_variance: float) -> Tensor:
    """KL(N(mean, diag variance) ‖ N(0, prior_variance I)), (B,), in nats.

    ½ Σ_d [v/σ² + μ²/σ² − 1 − log(v/σ²)].

    Parameters
    ----------
    mean, variance : (B, D).
    """
    ratio = variance / prior_variance
    return 0.5 * (ratio + mean.square() / prior_variance - 1 - ratio.log()).sum(1)
