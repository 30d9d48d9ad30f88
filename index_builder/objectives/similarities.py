"""Losses by a softmax over the similarities of a batch: N-pairs, InfoNCE, SupCon, SNCA and others.

The denominators of soft neighbours, SupCon and SNCA sum over all other images k ≠ i, positives and
negatives. With sums over negatives only, the losses of soft neighbours and SupCon would have no
lower bound.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from index_builder.objectives.pairs import mean_of, positives_and_negatives

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
