"""Triplets: the mining of useful triplets, and the triplet loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from index_builder.objectives.objective import mean_of, positives_and_negatives, squared_distances

Mining = Literal["all", "semihard", "hard"]
"""The choice of triplets by the gap g = d(a, n) − d(a, p) (Schroff et al. 2015). `all`: g below the
margin. `semihard`: also g > 0. `hard`: g ≤ 0."""

MINING_MARGIN = 0.2
"""Margin for the gap g, as a distance on the unit sphere; triplets with a larger gap need no
training."""


@torch.no_grad()
def mine_triplets(
    directions: Tensor, labels: Tensor, mining: Mining, n_most: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of anchors, positives and negatives of mined triplets.

    Parameters
    ----------
    directions : (B, D), unit.
    labels : (B,) int64.
    mining : see `Mining`.
    n_most : maximum number of triplets, drawn at random.
    generator : must be on the CPU.

    Returns
    -------
    anchors, positives, negatives : (T,) int64 each, 0 ≤ T ≤ ``n_most``.
    """
    distances = torch.cdist(directions, directions)
    same = labels[:, None] == labels
    is_positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    anchors, positives = is_positive.nonzero(as_tuple=True)
    lead = distances[anchors] - distances[anchors, positives][:, None]
    wanted = ~same[anchors] & (lead < MINING_MARGIN)
    if mining == "semihard":
        wanted &= lead > 0
    elif mining == "hard":
        wanted &= lead <= 0
    pairs, negatives = wanted.nonzero(as_tuple=True)
    if len(pairs) > n_most:
        kept = torch.randperm(len(pairs), generator=generator)[:n_most].to(pairs.device)
        pairs, negatives = pairs[kept], negatives[kept]
    return anchors[pairs], positives[pairs], negatives


Distance = Literal["euclidean", "squared", "cosine"]
"""The distance on the unit sphere: ‖z_i − z_j‖, its square, or 1 − cos (half the square)."""

MARGIN = 0.2
"""The margin of Schroff et al. 2015."""


def triplet_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    distance: Distance,
    soft: bool,
    mining: Mining,
    margin: float = MARGIN,
) -> Tensor:
    """Mean of [m + d(a, p) − d(a, n)]₊ over triplets, or of log(1 + exp(d(a, p) − d(a, n))).

    Hermans et al. 2017. The hinge is averaged over triplets with a loss above zero, because only a
    few of the thousands of triplets have a loss above zero. ``hard`` uses one triplet for each
    anchor: its farthest positive and its nearest negative. The loss is then averaged over all
    anchors.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    labels : (B,) int64.
    distance : how to compute the distance of two images, see `Distance`.
    soft : whether to use log(1 + exp(·)), without a margin.
    mining : see `TripletConfig`.
    margin : m.

    Returns
    -------
    A scalar; 0 if no image has both a positive and a negative.
    """
    squared = squared_distances(embeddings)
    if distance == "cosine":
        distances = squared / 2
    else:
        distances = squared if distance == "squared" else squared.sqrt()
    positive, negative = positives_and_negatives(labels)
    if mining == "hard":
        complete = positive.any(1) & negative.any(1)
        farthest = distances.masked_fill(~positive, -torch.inf).amax(1)[complete]
        nearest = distances.masked_fill(~negative, torch.inf).amin(1)[complete]
        return mean_of(_paid(farthest - nearest, margin, soft=soft))
    anchors, others = positive.nonzero(as_tuple=True)
    gap = distances[anchors, others][:, None] - distances[anchors]
    wanted = negative[anchors]
    if mining == "semihard":
        wanted &= (gap < 0) & (gap > -margin)
    paid = _paid(gap[wanted], margin, soft=soft)
    return mean_of(paid, None if soft else (paid > 0).sum())


def _paid(gap: Tensor, margin: float, *, soft: bool) -> Tensor:
    return torch.nn.functional.softplus(gap) if soft else (margin + gap).clamp_min(0)
