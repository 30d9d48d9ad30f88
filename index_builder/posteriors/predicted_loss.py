"""A second head predicts the loss of an image; this loss scales the variance of the embedding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from index_builder.networks.initialisation import drawn_from

PREDICTED_LOSS_FORMAT = "predicted-loss/1"

WIDTH = 512
"""Width of the hidden layer (Kirchhof et al. 2024)."""

_LEAST = 1e-6
"""Minimum predicted loss; it keeps every variance positive."""


class LossHead(nn.Module):
    """A network that predicts a loss ≥ 0: linear, ReLU, linear, softplus.

    Parameters
    ----------
    n_features : F.
    generator : draws the initial weights; None leaves them uninitialised, for loading.
    """

    def __init__(self, n_features: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        with drawn_from(generator or torch.Generator()):
            self.layers = nn.Sequential(
                nn.Linear(n_features, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1), nn.Softplus()
            )

    def forward(self, features: Tensor) -> Tensor:
        """Predicted losses (B,) of ``features`` (B, F)."""
        predicted: Tensor = self.layers(features)[:, 0]
        return predicted


class PredictedLossPosterior(nn.Module):
    """A last layer whose embeddings h have the variance T u ‖h‖² / D in each dimension.

    The spread of the embedding's direction then depends on the predicted loss u only; a larger u
    gives a larger spread. The temperature T converts a loss to a spread.
    """

    temperature: Tensor

    def __init__(self, last_layer: nn.Linear, head: LossHead, temperature: float = 1.0) -> None:
        super().__init__()
        self.last_layer = last_layer
        self.head = head
        self.register_buffer("temperature", torch.tensor(temperature))
        self.eval().requires_grad_(requires_grad=False)

    def at(self, temperature: float) -> PredictedLossPosterior:
        """Return a copy with the given temperature."""
        return PredictedLossPosterior(self.last_layer, self.head, temperature)

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""
        mean = self.last_layer(features)
        dim = self.last_layer.out_features
        relative = self.temperature * (self.head(features) + _LEAST) / dim
        variance = relative[:, None] * mean.square().sum(1, keepdim=True)
        return mean, variance.expand(-1, dim)

    def save(self, path: Path) -> None:
        """Write layer, head and temperature as safetensors."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        save_file(tensors, path, metadata={"format": PREDICTED_LOSS_FORMAT})

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> PredictedLossPosterior:
        """The posterior that `save` wrote."""
        dim, n_features = state["last_layer.weight"].shape
        posterior = cls(nn.Linear(n_features, dim), LossHead(n_features))
        posterior.load_state_dict(state)
        return posterior
