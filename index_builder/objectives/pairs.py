"""The pairs of images of a batch: which belong together, and how near they are."""

from __future__ import annotations

import torch
from torch import Tensor

_SQUARED_FLOOR = 1e-8
"""Added room under the root: its derivative is infinite where two embeddings coincide."""


def positives_and_negatives(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return which pairs are of one label, and which of two, (B, B) bool; an image is no pair."""
    same = labels[:, None] == labels
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return same & ~itself, ~same


def squared_distances(embeddings: Tensor) -> Tensor:
    """Squared distances (B, B) on the unit sphere; their root has a finite slope.

    Parameters
    ----------
    embeddings : (B, D), before normalisation.
    """
    unit = torch.nn.functional.normalize(embeddings)
    return (2 - 2 * unit @ unit.T).clamp_min(_SQUARED_FLOOR)


def mean_of(values: Tensor, n: Tensor | int | None = None) -> Tensor:
    """Mean of all ``values``, or their sum over ``n``; 0, with a gradient, of none."""
    count = values.numel() if n is None else n
    return values.sum() / torch.as_tensor(count).clamp_min(1)
