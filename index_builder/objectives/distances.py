"""Losses of distances: contrastive, margin, triplet, and Bayesian triplet loss.

The Laplace posterior uses the curvature of the squared form of the contrastive loss
(`minibatch_loss`). The papers' equations for the curvature of the negative term give the curvature
of the squared form. The first and the second form have the same positive term.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from index_builder.objectives.objective import (
    Objective,
    mean_of,
    positives_and_negatives,
    squared_distances,
)
from index_builder.objectives.von_mises_fisher import kl_divergence_to_uniform
from index_builder.posteriors.learned_variances import VarianceHead
from model_store.gaussian import DiagonalGaussian, triplet_margin_moments

Form = Literal["hadsell", "squared_margin", "unsquared"]


def contrastive_loss(
    embeddings: Tensor, labels: Tensor, margin: float, form: Form = "hadsell"
) -> Tensor:
    """Contrastive loss on L2-normalised embeddings (Warburg et al. 2023, Eq. 10; Hadsell 2006).

    With d = ‖z_i − z_j‖, a positive pair has the loss ½ d², and a negative pair has the loss ½ (m −
    d)₊². The positive term is the mean over all positive pairs. The negative term is the mean over
    the negative pairs inside the margin. In a mean over all negative pairs, these few pairs would
    have too little weight: all classes would collapse to one point.

    The second form has the negative term ½ (m² − d²)₊ (Eq. 11, made continuous). The gradient of
    this term is zero at d = 0, where a negative pair has its largest loss. Two classes at one point
    are therefore never separated. The third form has the losses d and (m − d)₊, as in the code of
    the Laplace paper.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.
    margin : m < 2, a distance on the unit sphere.
    form : one of the three forms.
    """
    squared = squared_distances(embeddings)
    positive, negative = positives_and_negatives(labels)
    if form == "squared_margin":
        pull, violation = 0.5 * squared[positive], (margin**2 - squared[negative]).clamp_min(0)
        push = 0.5 * violation
    else:
        violation = (margin - squared[negative].sqrt()).clamp_min(0)
        if form == "hadsell":
            pull, push = 0.5 * squared[positive], 0.5 * violation.square()
        else:
            pull, push = squared[positive].sqrt(), violation
    return mean_of(pull) + mean_of(push, (violation > 0).sum())


class ContrastiveLoss(Objective):
    """`contrastive_loss` of the last layer's embeddings; it has no parameters to train."""

    def __init__(self, margin: float, form: Form = "hadsell") -> None:
        super().__init__()
        self.margin = margin
        self.form: Form = form

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        return contrastive_loss(last_layer(features), labels, self.margin, self.form)


_NO_LOSS = 1.4
"""Negatives at this distance or farther are not drawn, as in the code of Wu et al. Orthogonal
embeddings have the distance √2."""


class MarginLoss(Objective):
    """[α + d(a, p) − β]₊ + [α + β − d(a, n)]₊ with a learned boundary β (Wu et al. 2017).

    For each positive pair, one negative of the anchor is drawn. The probability of a negative at
    distance d is inversely proportional to q(d), the density of distances on the sphere. The loss
    is averaged over the terms that are larger than zero.

    Parameters
    ----------
    margin : α.
    boundary : initial β.
    cutoff : minimum distance for computing the probability. A smaller distance is replaced by this
        minimum, because in high dimensions the density of small distances is nearly zero.
    generator : draws the negatives; must be on the CPU.
    """

    def __init__(
        self,
        *,
        margin: float,
        boundary: float,
        cutoff: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.margin = margin
        self.cutoff = cutoff
        self.generator = generator
        self.boundary = nn.Parameter(torch.tensor(boundary))

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        embeddings = last_layer(features)
        distances = squared_distances(embeddings).sqrt()
        positive, negative = positives_and_negatives(labels)
        anchors, others = (positive & negative.any(1)[:, None]).nonzero(as_tuple=True)
        if not len(anchors):
            nothing: Tensor = 0 * (embeddings.sum() + self.boundary)
            return nothing
        odds = negative_odds(distances.detach(), negative, embeddings.shape[1], self.cutoff)
        drawn = torch.multinomial(odds[anchors], 1, generator=self.generator).flatten()
        pull = (self.margin + distances[anchors, others] - self.boundary).clamp_min(0)
        push = (self.margin + self.boundary - distances[anchors, drawn]).clamp_min(0)
        paid = torch.cat([pull, push])
        return mean_of(paid, (paid > 0).sum())


def negative_odds(distances: Tensor, negative: Tensor, dim: int, cutoff: float) -> Tensor:
    """Return, for each anchor, the odds of drawing each negative: (B, B).

    The odds are 1 / q(d), scaled to at most 1.

    q(d) ∝ d^{D−2} (1 − d²/4)^{(D−3)/2} is the density of distances on the unit sphere of R^D (Wu et
    al. 2017, sec. 4.1). If all negatives of an anchor are at `_NO_LOSS` or farther, all of them
    have equal odds.

    Parameters
    ----------
    distances : (B, B), on the unit sphere.
    negative : (B, B) bool.
    dim : D.
    cutoff : see `MarginLoss`.
    """
    reached = distances.clamp(cutoff, _NO_LOSS)
    log_density = (dim - 2) * reached.log() + (dim - 3) / 2 * torch.log1p(-reached.square() / 4)
    drawable = negative & (distances < _NO_LOSS)
    drawable = torch.where(drawable.any(1, keepdim=True), drawable, negative)
    log_odds = (-log_density).masked_fill(~drawable, -torch.inf)
    largest = log_odds.amax(1, keepdim=True)
    return (log_odds - torch.where(largest.isfinite(), largest, 0)).exp()


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
    positive, negative = positives_and_negatives(labels)
    anchors, positives = positive.nonzero(as_tuple=True)
    lead = distances[anchors] - distances[anchors, positives][:, None]
    wanted = negative[anchors] & (lead < MINING_MARGIN)
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

TRIPLET_MARGIN = 0.2
"""The margin of Schroff et al. 2015."""


def triplet_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    distance: Distance,
    soft: bool,
    mining: Mining,
    margin: float = TRIPLET_MARGIN,
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
