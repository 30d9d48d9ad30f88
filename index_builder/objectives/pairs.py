"""Positive and negative pairs of a batch, and their distances."""

from __future__ import annotations

import torch
from torch import Tensor

_SQUARED_FLOOR = 1e-8
"""Minimum squared distance; the square root has no derivative at zero."""


def positives_and_negatives(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return masks (B, B) of positive and negative pairs, both False on the diagonal."""
    same = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return same & ~itself, ~same


def squared_distances(embeddings: Tensor) -> Tensor:
    """Return squared distances (B, B) on the unit sphere, each at least `_SQUARED_FLOOR`.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    """
    unit = torch.nn.functional.normalize(embeddings)
    return (2 - 2 * unit @ unit.T).clamp_min(_SQUARED_FLOOR)


def mean_of(values: Tensor, n: Tensor | int | None = None) -> Tensor:
    """Return the sum of ``values`` divided by ``n``; 0 if there are no values.

    By default, ``n`` is the number of values, so the result is the mean.
    """
    count = values.numel() if n is None else n
    return values.sum() / torch.as_tensor(count).clamp_min(1)
