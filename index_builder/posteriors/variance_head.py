"""A head for the Bayesian triplet loss: it predicts the variance of an image from its features."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

VARIANCE_HEAD_FORMAT = "variance-head/2"
UNIT_MEAN = "unit_mean"
"""Name of the tensor that stores `unit_mean`."""

_FLOOR = 1e-8
"""Minimum variance. A smaller variance would be less than the rounding error of a direction in
float32."""


_SERIES_BELOW = -3.0
"""`softplus` sums a series for inputs below this value; there, the omitted terms are at most 1e-8
of the sum."""


class VarianceHead(nn.Module):
    """Variance of an embedding, softplus(W φ + b), at least 1e-8.

    Parameters
    ----------
    n_features : F.
    embedding_dim : D.
    isotropic : one variance for all dimensions.
    initial_variance : variance of each dimension before training.
    """

    def __init__(
        self,
        n_features: int,
        embedding_dim: int,
        *,
        isotropic: bool = False,
        initial_variance: float = 1e-2,
    ) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.layer = nn.Linear(n_features, 1 if isotropic else embedding_dim)
        nn.init.zeros_(self.layer.weight)
        nn.init.constant_(self.layer.bias, math.log(math.expm1(initial_variance)))

    def forward(self, features: Tensor) -> Tensor:
        """Variances (B, D) of ``features`` (B, F)."""
        # The floor is a clamp and not a summand, because ONNX Runtime removes a summand of 1e-8.
        variance = softplus(self.layer(features)).clamp_min(_FLOOR)
        return variance.expand(-1, self.embedding_dim)


def softplus(values: Tensor) -> Tensor:
    """Return log(1 + eˣ) with the full precision of float32, also if the result is small.

    The softplus functions of torch and ONNX Runtime add eˣ to 1 before they take the logarithm. A
    result of 1e-5 then has only two correct digits. For x below −3, this function therefore sums
    the series in eˣ.
    """
    small = values.clamp_max(_SERIES_BELOW).exp()
    series = small * (1 - small * (1 / 2 - small * (1 / 3 - small * (1 / 4 - small / 5))))
    return torch.where(values < _SERIES_BELOW, series, nn.functional.softplus(values))


class VarianceHeadPosterior(nn.Module):
    """A last layer and its variance head, with the interface of `Posterior`.

    Parameters
    ----------
    unit_mean : whether the mean is normalised to unit length. True is required if the variance was
        trained on directions: the length of the last layer's output is then arbitrary.
    """

    def __init__(
        self, last_layer: nn.Linear, head: VarianceHead, *, unit_mean: bool = True
    ) -> None:
        super().__init__()
        self.last_layer = last_layer
        self.head = head
        self.unit_mean = unit_mean

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""
        mean = self.last_layer(features)
        return nn.functional.normalize(mean) if self.unit_mean else mean, self.head(features)

    def save(self, path: Path) -> None:
        """Write layer and head as safetensors."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        tensors[UNIT_MEAN] = torch.tensor(self.unit_mean)
        save_file(tensors, path, metadata={"format": VARIANCE_HEAD_FORMAT})

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> VarianceHeadPosterior:
        """Return the posterior that `save` wrote; its parameters are frozen."""
        layers = {name: value for name, value in state.items() if name != UNIT_MEAN}
        dim, n_features = state["last_layer.weight"].shape
        isotropic = state["head.layer.weight"].shape[0] == 1
        posterior = cls(
            nn.Linear(n_features, dim),
            VarianceHead(n_features, dim, isotropic=isotropic),
            unit_mean=bool(state[UNIT_MEAN]),
        )
        posterior.load_state_dict(layers)
        return posterior.requires_grad_(requires_grad=False)
