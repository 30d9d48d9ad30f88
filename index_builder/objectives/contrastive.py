"""The contrastive loss for training, in three forms.

The Laplace posterior uses the curvature of the squared form (`minibatch_loss`). It has the same
positive term; the papers' equations give the curvature of its negative term.
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

    With d = ‖z_i − z_j‖, a positive pair has the loss ½ d², a negative pair ½ (m − d)₊². The
    positive term is averaged over positive pairs, the negative term over pairs inside the margin.
    Averaged over all negative pairs, the few inside would weigh so little that classes collapse.

    The squared form, ½ (m² − d²)₊ (Eq. 11, made continuous), has no gradient at d = 0, where a
    negative pair is worst; confused classes then stay confused. The third form, d and (m − d)₊, is
    in the code of the Laplace paper.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.
    margin : m, a distance on the unit sphere, below 2.
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
    """`contrastive_loss` of the last layer's embeddings, without further parameters."""

    def __init__(self, margin: float, form: Form = "hadsell") -> None:
        super().__init__()
        self.margin = margin
        self.form: Form = form

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        return contrastive_loss(last_layer(features), labels, self.margin, self.form)
