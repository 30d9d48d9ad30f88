"""A posterior without training: the norm of an embedding is the concentration of its direction."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from model_store.sphere.normaliser import CORRECTIONS, LOWEST_ORDER

EMBEDDING_NORM_FORMAT = "embedding-norm/1"


@dataclass(frozen=True, slots=True)
class EmbeddingNormPosterior:
    """The direction of h = W φ + b is von Mises-Fisher with concentration κ = ‖h‖ / T.

    The method is from Kirchhof et al. 2022, sec. 3.2; the temperature T is added for objectives
    that do not train κ. The mean of the embedding is h, and its variance is equal in all
    dimensions. The variance is chosen so that the normalised embedding has the mean resultant
    length A_D(κ). The service therefore reports the concentration κ.

    Attributes
    ----------
    weight : (D, F)
    bias : (D,)
    temperature : scalar T > 0.
    """

    weight: Tensor
    bias: Tensor
    temperature: Tensor

    @classmethod
    def of(cls, last_layer: nn.Linear) -> EmbeddingNormPosterior:
        """Create the posterior of a trained layer, at temperature 1."""
        return cls(last_layer.weight.detach(), last_layer.bias.detach(), torch.tensor(1.0))

    def at(self, temperature: float) -> EmbeddingNormPosterior:
        """Return a copy with the given temperature."""
        return replace(self, temperature=torch.tensor(temperature))

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F).

        Let R = A_D(κ) = κ g be the mean resultant length. The variances v then sum to ‖h‖² (1 / R²
        − 1) = T² / g² − ‖h‖². This sum is finite for h = 0, where the direction is uniform.
        """
        mean = torch.addmm(self.bias, features, self.weight.T)
        dim = self.weight.shape[0]
        squared = mean.double().square().sum(1, keepdim=True)
        temperature = self.temperature.double()
        ratio = mean_over_concentration(squared.sqrt() / temperature, dim)
        total = (temperature / ratio).square() - squared
        variance = (total / dim).clamp_min(0).to(mean.dtype)
        return mean, variance.expand(-1, dim)

    def save(self, path: Path) -> None:
        """Write layer and temperature as safetensors."""
        tensors = {
            "weight": self.weight.contiguous(),
            "bias": self.bias.contiguous(),
            "temperature": self.temperature,
        }
        save_file(tensors, path, metadata={"format": EMBEDDING_NORM_FORMAT})


def mean_over_concentration(concentration: Tensor, dim: int) -> Tensor:
    """Return A_D(κ) / κ, 1/D at κ = 0, by the expansion and recurrence of `model_store.sphere`.

    The function uses only operators of ONNX, because the posterior is exported.

    Parameters
    ----------
    concentration : (...) κ ≥ 0, float64.
    dim : D ≥ 2.
    """
    squared = concentration.square()
    n_steps = max(0, math.ceil(LOWEST_ORDER - (dim / 2 - 1)))
    order = dim / 2 - 1 + n_steps
    h = (squared + order**2).sqrt()
    s = (order / h).square()
    corrections = torch.zeros_like(h)
    for in_s in reversed(CORRECTIONS[:, :, 1].T.tolist()):
        coefficient = torch.zeros_like(h)
        for value in reversed(in_s):
            coefficient = coefficient * s + value
        corrections = (corrections + coefficient) / h
    ratio = 1 / (order + h) - (0.5 + corrections) / h.square()
    for step in reversed(range(n_steps)):
        ratio = 1 / (2 * (dim / 2 + step) + squared * ratio)
    return ratio
