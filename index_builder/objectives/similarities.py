"""Losses of the similarities in a batch: by a softmax, by a ranking, and of two views.

The losses by a softmax are N-pairs, InfoNCE, SupCon, SNCA and others. The denominators of soft
neighbours, SupCon and SNCA sum over all other images k ≠ i, positives and negatives. With sums over
negatives only, the losses of soft neighbours and SupCon would have no lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from index_builder.objectives.objective import (
    Loss,
    LossOfEmbeddings,
    Objective,
    mean_of,
    positives_and_negatives,
)
from index_builder.objectives.von_mises_fisher import sample_von_mises_fisher

Softmax = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function that computes a loss from logits (B, B) and from masks of positive and negative
pairs."""


def similarity_loss(
    embeddings: Tensor, labels: Tensor, softmax: Softmax, temperature: float
) -> Tensor:
    """Return a loss of `SOFTMAXES`; the logits are the cosines divided by the temperature."""
    unit = torch.nn.functional.normalize(embeddings)
    return softmax(unit @ unit.T / temperature, *positives_and_negatives(labels))


def n_pairs_loss(embeddings: Tensor, labels: Tensor, norm_weight: float) -> Tensor:
    """log(1 + Σ_n exp(z_a·z_n − z_a·z_p)) averaged over positive pairs (a, p) (Sohn 2016).

    The sum is over the negatives n of a. The embeddings are not normalised. ``norm_weight`` times
    the mean squared length of the embeddings is added to the loss.
    """
    loss = info_nce(embeddings @ embeddings.T, *positives_and_negatives(labels))
    return loss + norm_weight * embeddings.square().sum(1).mean()


def info_nce(logits: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """−log e^{s_ip} / (e^{s_ip} + Σ_n e^{s_in}), averaged over positive pairs (i, p)."""
    anchors, others = positive.nonzero(as_tuple=True)
    against = logits.masked_fill(~negative, -torch.inf).logsumexp(1)
    right = logits[anchors, others]
    return mean_of(torch.logaddexp(right, against[anchors]) - right)


def snca(logits: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """−log Σ_p e^{s_ip} / Σ_{k≠i} e^{s_ik}, averaged over images with positives.

    Wu et al. 2018.
    """
    has_any = positive.any(1)
    logits, positive, negative = logits[has_any], positive[has_any], negative[has_any]
    near = logits.masked_fill(~positive, -torch.inf).logsumexp(1)
    all_others = logits.masked_fill(~(positive | negative), -torch.inf).logsumexp(1)
    return mean_of(all_others - near)


def soft_nearest_neighbours(logits: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """`snca`, but with the mean over the positives of an image instead of the sum."""
    numbers = positive.sum(1)
    return snca(logits, positive, negative) + mean_of(numbers[numbers > 0].to(logits).log())


def supcon(logits: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """−log e^{s_ip} / Σ_{k≠i} e^{s_ik}, averaged over p, then over i.

    Khosla et al. 2020, L_out.
    """
    numbers = positive.sum(1)
    has_any = numbers > 0
    logits, positive, negative = logits[has_any], positive[has_any], negative[has_any]
    all_others = logits.masked_fill(~(positive | negative), -torch.inf).logsumexp(1)
    return mean_of(all_others - (logits * positive).sum(1) / numbers[has_any])


SOFTMAXES: dict[str, Softmax] = {
    "info_nce": info_nce,
    "soft_nearest_neighbours": soft_nearest_neighbours,
    "supcon": supcon,
    "snca": snca,
}
"""Losses by the `kind` of the objective."""


def multi_similarity(alpha: float, beta: float, base: float) -> Loss:
    """Return the multi-similarity loss (Wang et al. 2019; Boudiaf et al. 2020, Tab. 2).

    1/α log(1 + Σ_p e^{−α(s_ip − λ)}) + 1/β log(1 + Σ_n e^{β(s_in − λ)}) over all pairs, averaged
    over images i.
    """
    from pytorch_metric_learning.losses import MultiSimilarityLoss  # noqa: PLC0415 - slow

    loss: Loss = MultiSimilarityLoss(alpha=alpha, beta=beta, base=base)
    return loss


def fast_ap(n_bins: int) -> Loss:
    """Return 1 − average precision over a histogram of squared distances (Cakir et al. 2019).

    AP = Σ_b h⁺_b H⁺_b / (H_b N⁺), where h⁺_b is the number of positives in bin b. H⁺_b and H_b are
    the numbers of positives and of images in the bins up to b.
    """
    from pytorch_metric_learning.losses import FastAPLoss  # noqa: PLC0415 - slow

    loss: Loss = FastAPLoss(num_bins=n_bins)
    return loss


def smooth_ap(embeddings: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return 1 − average precision, with a sigmoid for "is ranked before" (Brown et al. 2020).

    AP_i is the mean of R⁺/R over the positives p. R = 1 + Σ_j σ((s_ij − s_ip) / τ) sums over all
    other images j; R⁺ sums over the positives j only. The labels can have different numbers of
    images. The implementation in pytorch-metric-learning requires sorted labels with equal numbers
    of images. That implementation also uses the number of labels where this function uses the
    number of images of a label.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.
    temperature : τ, temperature of the cosines.
    """
    unit = torch.nn.functional.normalize(embeddings)
    cosines = unit @ unit.T
    positive, negative = positives_and_negatives(labels)
    anchors, others = positive.nonzero(as_tuple=True)
    before = ((cosines[anchors] - cosines[anchors, others][:, None]) / temperature).sigmoid()
    # p itself adds 1 to its rank: 0.5 here, and the sigmoid of 0 in the sum.
    among = 0.5 + (before * positive[anchors]).sum(1)
    rank = among + (before * negative[anchors]).sum(1)
    numbers = positive.sum(1)
    each = among / rank / numbers[anchors]
    return 1 - mean_of(each, (numbers > 0).sum()) if len(anchors) else 0 * embeddings.sum()


_SHORTEST = 1e-6
"""Minimum length of an embedding; the length has no derivative at zero."""


def simclr(temperature: float) -> Objective:
    """Return InfoNCE of the cosines between two views of each image (Chen et al. 2020)."""

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        return similarity_loss(embeddings, labels, info_nce, temperature)

    return LossOfEmbeddings(loss, "views")


class MonteCarloInfoNceLoss(Objective):
    """InfoNCE between samples of the distributions of two views (Kirchhof et al. 2023).

    The loss is −log 1/S Σ_s exp(κ z_i·z_p) / Σ_{k≠i} exp(κ z_i·z_k). Each z is a sample from the
    von Mises-Fisher distribution of a view. The concentration of a view is the length of its
    embedding; in the paper, a separate network predicts the concentration.

    Parameters
    ----------
    concentration : κ.
    n_samples : S.
    generator : draws the samples.
    """

    sampling = "views"

    def __init__(self, *, concentration: float, n_samples: int, generator: torch.Generator) -> None:
        super().__init__()
        self.concentration = concentration
        self.n_samples = n_samples
        self.generator = generator

    def forward(self, features: Tensor, labels: Tensor, last_layer: nn.Linear) -> Tensor:
        """Loss of a minibatch of ``features`` (B, F)."""
        embeddings = last_layer(features)
        length = embeddings.norm(dim=1).clamp_min(_SHORTEST)
        drawn = sample_von_mises_fisher(
            embeddings / length[:, None], length, self.n_samples, self.generator
        )
        positive, negative = positives_and_negatives(labels)
        anchors, others = positive.nonzero(as_tuple=True)
        logits = self.concentration * drawn @ drawn.mT
        against = logits.masked_fill(~(positive | negative), -torch.inf).logsumexp(2)
        right = logits[:, anchors, others] - against[:, anchors]
        return mean_of(math.log(self.n_samples) - right.logsumexp(0))
