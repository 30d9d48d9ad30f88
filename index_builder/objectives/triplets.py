"""Triplets of a minibatch that are useful for training."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Mining = Literal["all", "semihard", "hard"]
"""By the lead g = d(a, n) − d(a, p) of the positive over the negative (Schroff et al. 2015):
`all` triplets with g below the miner's margin, `semihard` 0 < g, `hard` g ≤ 0 among them."""

MINING_MARGIN = 0.2
"""In distance on the unit sphere: triplets whose positive leads by more have nothing to teach."""


@torch.no_grad()
def mine_triplets(
    directions: Tensor, labels: Tensor, mining: Mining, n_most: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of anchors, positives and negatives.

    Parameters
    ----------
    directions : (B, D), unit.
    labels : (B,) int64.
    mining : which.
    n_most : of more, so many are drawn at random.
    generator : on the CPU.

    Returns
    -------
    anchors, positives, negatives : (T,) int64 each; T ≤ ``n_most``, and 0 where nothing is left to
        learn.
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
