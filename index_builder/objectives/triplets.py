"""Triplets: the mining of useful triplets, the triplet loss, and the Bayesian triplet loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from index_builder.posteriors.learned_variances import VarianceHead
from model_store.gaussian import DiagonalGaussian, triplet_margin_moments

from .objective import Objective, mean_of, positives_and_negatives, squared_distances
from .von_mises_fisher import kl_divergence_to_uniform

Mining = Literal["all", "semihard", "hard"]
"""The choice of triplets by the gap g = d(a, n) − d(a, p) (Schroff et al. 2015). `all`: g below the
margin. `semihard`: also g > 0. `hard`: g ≤ 0."""

MINING_MARGIN = 0.2
"""Margin for the gap g, as a distance on the unit sphere; triplets with a larger gap need no
training."""


@torch.no_grad()
def mine_triplets(
    directions: Tensor, labels: Tensor, mining: Mining, n_most: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of anchors, positives and negatives of mined triplets.

    Parameters
    ----------
    directions : (B, D), unit.
    labels : (B,) int64.
    mining : see `Mining`.
    n_most : maximum number of triplets, drawn at random.
    generator : must be on the CPU.

    Returns
    -------
    anchors, positives, negatives : (T,) int64 each, 0 ≤ T ≤ ``n_most``.
    """
    distances = torch.cdist(directions, directions)
    same = labels[:, None] == labels
    is_positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    anchors, positives = is_positive.nonzero(as_tuple=True)
    lead = distances[anchors] - distances[anchors, positives][:, None]
    wanted = ~same[anchors] & (lead < MINING_MARGIN)
    if mining == "semihard":
        wanted &= lead > 0
    elif mining == "hard":
        wanted &= lead <= 0
    pairs, negatives = wanted.nonzero(as_tuple=True)
    if len(pairs) > n_most:
        kept = torch.randperm(len(pairs), generator=generator)[:n_most].to(pairs.device)
        pairs, negatives = pairs[kept], negatives[kept]
    return anchors[pairs], positives[pairs], negatives


Distance = Literal["euclidean", "squared", "cosine"]
"""The distance on the unit sphere: ‖z_i − z_j‖, its square, or 1 − cos (half the square)."""

MARGIN = 0.2
"""The margin of Schroff et al. 2015."""


def triplet_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    distance: Distance,
    soft: bool,
    mining: Mining,
    margin: float = MARGIN,
) -> Tensor:
    """Mean of [m + d(a, p) − d(a, n)]₊ over triplets, or of log(1 + exp(d(a, p) − d(a, n))).

    Hermans et al. 2017. The hinge is averaged over triplets with a loss above zero, because only a
    few of the thousands of triplets have a loss above zero. ``hard`` uses one triplet for each
    anchor: its farthest positive and its nearest negative. The loss is then averaged over all
    anchors.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.
    distance : how to compute the distance of two images, see `Distance`.
    soft : whether to use log(1 + exp(·)), without a margin.
    mining : see `TripletConfig`.
    margin : m.

    Returns
    -------
    A scalar; 0 if no image has both a positive and a negative.
    """
    squared = squared_distances(embeddings)
    if distance == "cosine":
        distances = squared / 2
    else:
        distances = squared if distance == "squared" else squared.sqrt()
    positive, negative = positives_and_negatives(labels)
    if mining == "hard":
        complete = positive.any(1) & negative.any(1)
        farthest = distances.masked_fill(~positive, -torch.inf).amax(1)[complete]
        nearest = distances.masked_fill(~negative, torch.inf).amin(1)[complete]
        return mean_of(_paid(farthest - nearest, margin, soft=soft))
    anchors, others = positive.nonzero(as_tuple=True)
    gap = distances[anchors, others][:, None] - distances[anchors]
    wanted = negative[anchors]
    if mining == "semihard":
        wanted &= (gap < 0) & (gap > -margin)
    paid = _paid(gap[wanted], margin, soft=soft)
    return mean_of(paid, None if soft else (paid > 0).sum())


def _paid(gap: Tensor, margin: float, *, soft: bool) -> Tensor:
    return torch.nn.functional.softplus(gap) if soft else (margin + gap).clamp_min(0)


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
