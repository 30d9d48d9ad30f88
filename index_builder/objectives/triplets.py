"""Mining: choose the triplets that are useful for training."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

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
