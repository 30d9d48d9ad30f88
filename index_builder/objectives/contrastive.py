"""Losses of pairs: the contrastive loss in three forms, and the margin loss.

The Laplace posterior uses the curvature of the squared form (`minibatch_loss`). The papers'
equations for the curvature of the negative term give the curvature of the squared form. The first
and the second form have the same positive term.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from .objective import Objective, mean_of, positives_and_negatives, squared_distances

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
    learning_rate : learning rate of β.
    """

    def __init__(
        self,
        *,
        margin: float,
        boundary: float,
        cutoff: float,
        generator: torch.Generator,
        learning_rate: float | None = None,
    ) -> None:
        super().__init__()
        self.margin = margin
        self.cutoff = cutoff
        self.generator = generator
        self.learning_rate = learning_rate
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
