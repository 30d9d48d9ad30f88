"""Hedged instance embeddings: match probabilities between sampled embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from index_builder.objectives.bayesian_triplet import gaussian_divergence
from index_builder.objectives.objective import Objective
from index_builder.posteriors import UncertaintyModule

_SLOPE = 10.0
"""a at first: from match to no match within half the unit sphere's radius."""

_BOUNDARY = 1 / math.sqrt(2)
"""b / a at first: half the distance between embeddings that have nothing in common."""

_SQUARED_FLOOR = 1e-8
"""The least squared distance: the root's derivative is infinite where two samples coincide."""


class HedgedInstanceLoss(Objective):
    """The variational information bottleneck on matches (Oh et al. 2019).

    −log P(match) of pairs of one label and −log P(no match) of others, either half the loss, plus
    ``kl_weight`` times the divergence of both images' embeddings from N(0, I). P(match) is the mean
    of σ(−a d + b) over all pairs of K samples of either image, with a > 0 and b learned. Samples
    are normalised, as an answer's are, where Oh et al. compare them as they come: the distance d is
    that on the unit sphere, and an image that is not sure has a mean that is short beside its
    standard deviation.

    Parameters
    ----------
    module : gives the variances; the last layer gives the means.
    kl_weight : of the divergence.
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
        """The state of the uncertainty module, of what `learned` gave."""
        prefix = "module."
        return {
            name.removeprefix(prefix): value
            for name, value in learned.items()
            if name.startswith(prefix)
        }


def _mean_of(values: Tensor, chosen: Tensor) -> Tensor:
    """Mean of the chosen values; 0 where there are none."""
    return (values * chosen).sum() / chosen.sum().clamp_min(1)
