"""The contrastive loss for training, in three forms.

The Laplace posterior uses the curvature of the squared form (`minibatch_loss`). The papers'
equations for the curvature of the negative term give the curvature of the squared form. The first
and the second form have the same positive term.
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
