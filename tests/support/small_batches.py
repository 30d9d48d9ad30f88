"""Small batches in float64, and what loops over their pairs need."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
"""Labels of 3, 2 and 4 images."""

LIMITS = {
    "one positive pair": torch.tensor([0, 0, 1, 2]),
    "no negative": torch.tensor([0, 0, 0, 0]),
    "no positive": torch.tensor([0, 1, 2, 3]),
}


def embeddings(n: int = len(LABELS), dim: int = 5, seed: int = 0) -> Tensor:
    """(n, D), of different lengths, that want a gradient."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return (drawn * torch.linspace(0.5, 2, n, dtype=torch.float64)[:, None]).requires_grad_()


def positives(labels: Tensor, i: int) -> list[int]:
    return [j for j in range(len(labels)) if j != i and labels[j] == labels[i]]


def negatives(labels: Tensor, i: int) -> list[int]:
    return [j for j in range(len(labels)) if labels[j] != labels[i]]


def total(values: Iterable[Tensor]) -> Tensor:
    found = list(values)
    return torch.stack(found).sum(0) if found else torch.zeros((), dtype=torch.float64)


def unit(values: Tensor) -> Tensor:
    scaled: Tensor = values / values.norm(dim=-1, keepdim=True)
    return scaled


def gradient(value: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(value, of, retain_graph=True)[0]
