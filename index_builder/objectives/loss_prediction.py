"""Loss prediction: a head is trained to predict the retrieval loss of an image."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from index_builder.objectives.objective import Objective, mean_of, positives_and_negatives
from index_builder.posteriors.learned_variances import LossHead

Form = Literal["ranking", "squared"]

MARGIN = 0.1
"""Margin m between the predictions of two images (Kirchhof et al. 2024)."""

TEMPERATURE = 0.1
"""Temperature of the cosines in the predicted loss."""


class LossPrediction(Objective):
    """Trains a head to predict the loss of each image; the encoder is frozen.

    ``ranking``: max(0, m − sgn(l_i − l_j)(u_i − u_j)) over pairs of images with losses l and
    predictions u (pretrained visual uncertainties, Kirchhof et al. 2024; Yoo & Kweon 2019).
    ``squared``: (l − u)², the baseline of the URL benchmark (Kirchhof et al. 2023). The papers
    predict the loss of a classifier. A retrieval model has no classifier. Here the loss of an image
    is computed from its neighbours in the batch, see `neighbour_losses`.

    Parameters
    ----------
    head : maps features to predictions.
    form : ``ranking`` or ``squared``.
    """

    def __init__(self, head: LossHead, form: Form) -> None:
        super().__init__()
        self.head = head
        self.form = form

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F); 0 if no two images share a label."""
        with torch.no_grad():
            losses, has_any = neighbour_losses(last_layer(features), labels)
        predicted = self.head(features)[has_any]
        losses = losses[has_any]
        if self.form == "squared":
            return mean_of((losses - predicted).square())
        first, second = torch.triu_indices(len(losses), len(losses), offset=1)
        order = (losses[first] - losses[second]).sign()
        gap = predicted[first] - predicted[second]
        return mean_of((MARGIN - order * gap).clamp_min(0) * order.abs())


def neighbour_losses(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return −log Σ_p e^{cos(i, p)/T} / Σ_{k≠i} e^{cos(i, k)/T} of each image i, as in SNCA.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.

    Returns
    -------
    Losses (B,), and whether each image has a positive, (B,). An image without a positive has the
    loss 0.
    """
    unit = nn.functional.normalize(embeddings)
    logits = unit @ unit.T / TEMPERATURE
    positive, negative = positives_and_negatives(labels)
    has_any = positive.any(1)
    near = logits.masked_fill(~positive, -torch.inf).logsumexp(1)
    everyone = logits.masked_fill(~(positive | negative), -torch.inf).logsumexp(1)
    return torch.where(has_any, everyone - near, 0.0), has_any
