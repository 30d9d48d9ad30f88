"""Ranking objectives: multi-similarity, and two smooth forms of average precision."""

from __future__ import annotations

import torch
from torch import Tensor

from index_builder.objectives.of_embeddings import Loss
from index_builder.objectives.pairs import mean_of, positives_and_negatives


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
