"""No posterior: the deterministic baseline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

POINT_FORMAT = "point-posterior/1"


@dataclass(frozen=True, slots=True)
class PointPosterior:
    """A last layer h = W φ + b whose embedding has variance zero.

    Attributes
    ----------
    weight : (D, F)
    bias : (D,)
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, last_layer: nn.Linear) -> PointPosterior:
        """Create the posterior of a trained layer."""
        return cls(last_layer.weight.detach(), last_layer.bias.detach())

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""
        mean = torch.addmm(self.bias, features, self.weight.T)
        return mean, torch.zeros_like(mean)

    def save(self, path: Path) -> None:
        """Write the layer as safetensors."""
        tensors = {"weight": self.weight.contiguous(), "bias": self.bias.contiguous()}
        save_file(tensors, path, metadata={"format": POINT_FORMAT})
