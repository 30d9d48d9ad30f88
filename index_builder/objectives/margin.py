"""The margin loss with distance-weighted sampling of negatives."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from index_builder.objectives.objective import Objective
from index_builder.objectives.pairs import mean_of, positives_and_negatives, squared_distances

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
