"""The contrastive loss that trains.

The Laplace posterior takes the curvature of its form in squared distances (`minibatch_loss`), which
has the same positives and, for negatives, the curvature that the papers' equations are written for.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from index_builder.objectives.objective import Objective

_SQUARED_FLOOR = 1e-8
"""Added room under the root: its derivative is infinite where two embeddings coincide."""


def contrastive_loss(embeddings: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Contrastive loss on L2-normalised embeddings (Warburg et al. 2023, Eq. 10; Hadsell 2006).

    For a pair at distance d = ‖z_i − z_j‖, positives pay ½ d² and negatives ½ (m − d)₊². Positives
    are averaged over their pairs, negatives over those inside the margin: over all of them, the few
    that violate it would weigh so little that classes collapse onto each other. The form in squared
    distances, ½ (m² − d²)₊, has no gradient at d = 0, just where a negative pair is worst: training
    with it leaves confused classes confused.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.
    margin : m, in distance on the unit sphere, so below 2.
    """
    unit = torch.nn.functional.normalize(embeddings)
    squared = (2 - 2 * unit @ unit.T).clamp_min(_SQUARED_FLOOR)
    same = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    violation = (margin - squared[~same].sqrt()).clamp_min(0)
    n_violating = (violation > 0).sum().clamp_min(1)
    return 0.5 * squared[same & ~itself].mean() + 0.5 * violation.square().sum() / n_violating


class ContrastiveLoss(Objective):
    """`contrastive_loss` of the last layer's embeddings; it learns nothing beside them."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        return contrastive_loss(last_layer(features), labels, self.margin)
