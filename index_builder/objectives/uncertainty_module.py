"""Objectives of an uncertainty module: probabilistic face and hedged instance embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from index_builder.objectives.bayesian_triplet import gaussian_divergence
from index_builder.objectives.objective import Objective
from index_builder.posteriors.learned_variances import UncertaintyModule


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


_SLOPE = 10.0
"""Initial a. With this value, P(match) falls from nearly 1 to nearly 0 over a distance of about
½."""

_BOUNDARY = 1 / math.sqrt(2)
"""Initial b / a: half the distance between two orthogonal embeddings."""

_SQUARED_FLOOR = 1e-8
"""Minimum squared distance; the square root has no derivative at zero."""


class HedgedInstanceLoss(Objective):
    """The variational information bottleneck on matches (Oh et al. 2019).

    A pair of images has the loss −log P(match) if both have the same label, otherwise −log P(no
    match). The loss is the average of two means: the mean over pairs with the same label, and the
    mean over all other pairs. The loss also includes ``kl_weight`` times the divergence of a pair's
    embeddings from N(0, I). P(match) is the mean of σ(−a d + b) over K² pairs of samples: each of
    the K samples of one image is paired with each of the K samples of the other image. The slope a
    > 0 and the offset b are learned. Samples are normalised as in a search, so d is a distance on
    the unit sphere; in Oh et al., samples are not normalised. An uncertain image has an embedding
    whose mean is short relative to its standard deviation.

    Parameters
    ----------
    module : predicts the variances; the last layer predicts the means.
    kl_weight : weight of the divergence.
    n_samples : K.
    generator : draws the samples.
    """

    def __init__(
        self,
        module: UncertaintyModule,
        *,
        kl_weight: float,
        n_samples: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.module = module
        self.kl_weight = kl_weight
        self.n_samples = n_samples
        self.generator = generator
        self.raw_slope = nn.Parameter(torch.tensor(math.log(math.expm1(_SLOPE))))
        self.offset = nn.Parameter(torch.tensor(_SLOPE * _BOUNDARY))

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        mean, variance = last_layer(features), self.module(features)
        noise = torch.randn(self.n_samples, *mean.shape, generator=self.generator, dtype=mean.dtype)
        samples = nn.functional.normalize(mean + variance.sqrt() * noise, dim=-1)
        match, no_match = self.log_probabilities(samples)
        same = labels[:, None] == labels
        pairs = torch.ones_like(same).triu(diagonal=1)
        surprise = -(_mean_of(match, pairs & same) + _mean_of(no_match, pairs & ~same)) / 2
        return surprise + 2 * self.kl_weight * gaussian_divergence(mean, variance, 1.0).mean()

    def log_probabilities(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Log P(match) and log P(no match) of all pairs of images, (B, B) each.

        Parameters
        ----------
        samples : (K, B, D), unit.
        """
        n_samples, n_images, _ = samples.shape
        flat = samples.flatten(0, 1)
        distances = (2 - 2 * flat @ flat.T).clamp_min(_SQUARED_FLOOR).sqrt()
        logits = self.offset - nn.functional.softplus(self.raw_slope) * distances
        shape = (n_samples, n_images, n_samples, n_images)
        match = nn.functional.logsigmoid(logits).view(shape).logsumexp((0, 2))
        no_match = nn.functional.logsigmoid(-logits).view(shape).logsumexp((0, 2))
        return match - 2 * math.log(n_samples), no_match - 2 * math.log(n_samples)

    @staticmethod
    def module_state(learned: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state of the uncertainty module from the tensors of `learned`."""
        prefix = "module."
        return {
            name.removeprefix(prefix): value
            for name, value in learned.items()
            if name.startswith(prefix)
        }


def _mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of the chosen values; 0 if no value is chosen."""
    return (values * chosen).sum() / chosen.sum().clamp_min(1)
