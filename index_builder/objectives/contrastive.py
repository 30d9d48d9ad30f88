"""The contrastive loss that trains, in three forms.

The Laplace posterior takes the curvature of its form in squared distances (`minibatch_loss`), which
has the same positives and, for negatives, the curvature that the papers' equations are written for.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from index_builder.objectives.objective import Objective
from index_builder.objectives.pairs import mean_of, positives_and_negatives, squared_distances

Form = Literal["hadsell", "squared_margin", "unsquared"]


def contrastive_loss(
    embeddings: Tensor, labels: Tensor, margin: float, form: Form = "hadsell"
) -> Tensor:
    """Contrastive loss on L2-normalised embeddings (Warburg et al. 2023, Eq. 10; Hadsell 2006).

    For a pair at distance d = ‖z_i − z_j‖, positives pay ½ d² and negatives ½ (m − d)₊². Positives
    are averaged over their pairs, negatives over those inside the margin: over all of them, the few
    that violate it would weigh so little that classes collapse onto each other.

    The form in squared distances, ½ (m² − d²)₊ (Eq. 11, made continuous), has no gradient at d = 0,
    just where a negative pair is worst: training with it leaves confused classes confused. The
    third is that of the Laplace paper's code: d and (m − d)₊, neither squared nor halved.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.
    margin : m, in distance on the unit sphere, so below 2.
    form : which.
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
    """`contrastive_loss` of the last layer's embeddings; it learns nothing beside them."""

    def __init__(self, margin: float, form: Form = "hadsell") -> None:
        super().__init__()
        self.margin = margin
        self.form: Form = form

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        return contrastive_loss(last_layer(features), labels, self.margin, self.form)
