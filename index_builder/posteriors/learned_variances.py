"""Heads that predict the variance of an embedding, or the loss of an image, from features."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from index_builder.networks import MetricEncoder
from index_builder.networks.trunk import drawn_from

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


class _HeadPosterior(nn.Module):
    """A last layer and a head that predicts variances, with the interface of `Posterior`.

    Parameters
    ----------
    unit_mean : whether the mean is normalised to unit length. True is required if the variance was
        trained on directions: the length of the last layer's output is then arbitrary.
    """

    FORMAT: ClassVar[str]
    HEAD: ClassVar[str]
    """Name of the head among the stored tensors."""

    def __init__(self, last_layer: nn.Linear, head: nn.Module, *, unit_mean: bool = True) -> None:
        super().__init__()
        self.last_layer = last_layer
        self.add_module(self.HEAD, head)
        self.unit_mean = unit_mean
        self.eval().requires_grad_(requires_grad=False)

    @staticmethod
    @abstractmethod
    def head_for(state: Mapping[str, Tensor], n_features: int, dim: int) -> nn.Module:
        """Return a head with the shape of the stored head."""

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""
        mean, variance = self.last_layer(features), self.get_submodule(self.HEAD)(features)
        return nn.functional.normalize(mean) if self.unit_mean else mean, variance

    def save(self, path: Path) -> None:
        """Write layer and head as safetensors."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        tensors[UNIT_MEAN] = torch.tensor(self.unit_mean)
        save_file(tensors, path, metadata={"format": self.FORMAT})

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """The posterior that `save` wrote."""
        layers = {name: value for name, value in state.items() if name != UNIT_MEAN}
        dim, n_features = state["last_layer.weight"].shape
        head = cls.head_for(state, n_features, dim)
        posterior = cls(nn.Linear(n_features, dim), head, unit_mean=bool(state[UNIT_MEAN]))
        posterior.load_state_dict(layers)
        return posterior


class VarianceHeadPosterior(_HeadPosterior):
    """A last layer and its `VarianceHead`."""

    FORMAT, HEAD = VARIANCE_HEAD_FORMAT, "head"

    @staticmethod
    def head_for(state: Mapping[str, Tensor], n_features: int, dim: int) -> VarianceHead:
        """Return a head with the shape of the stored head."""
        isotropic = state["head.layer.weight"].shape[0] == 1
        return VarianceHead(n_features, dim, isotropic=isotropic)


UNCERTAINTY_MODULE_FORMAT = "uncertainty-module/1"

_LOG_LIMIT = 18.0
"""Maximum magnitude of a log variance. A variance below e⁻¹⁸ is less than the rounding error of a
direction in float32. The square of e¹⁸ does not overflow."""


class UncertaintyModule(nn.Module):
    """A network for variances: linear, batch norm, ReLU, linear, batch norm.

    The architecture comes from Warburg et al. 2023, G.4. Its last layer gives the logarithm of the
    variance. As in Shi & Jain 2019, the last batch norm has one scale and one shift for all
    dimensions. Warburg et al. measured slightly better results with this form. The scale starts
    near zero, so all images have nearly the same variance at the start of training.

    Parameters
    ----------
    n_features : F.
    embedding_dim : D; the hidden layer has the same size.
    initial_variance : variance of each dimension before training.
    """

    def __init__(self, n_features: int, embedding_dim: int, initial_variance: float = 1.0) -> None:
        super().__init__()
        self.hidden = nn.Linear(n_features, embedding_dim)
        self.hidden_norm = nn.BatchNorm1d(embedding_dim)
        self.output = nn.Linear(embedding_dim, embedding_dim)
        self.output_norm = nn.BatchNorm1d(embedding_dim, affine=False)
        self.scale = nn.Parameter(torch.tensor(1e-4))
        self.shift = nn.Parameter(torch.tensor(math.log(initial_variance)))

    @classmethod
    def beside(cls, encoder: MetricEncoder, generator: torch.Generator) -> UncertaintyModule:
        """Create an untrained module for ``encoder``, drawn from ``generator``.

        The initial variances of an image sum to ½, as in Shi & Jain: e⁻⁷ in each of 512 dimensions.
        """
        dim = encoder.last_layer.out_features
        with drawn_from(generator):
            return cls(encoder.trunk.n_features, dim, initial_variance=0.5 / dim)

    def forward(self, features: Tensor) -> Tensor:
        """Variances (B, D) of ``features`` (B, F)."""
        hidden = torch.relu(self.hidden_norm(self.hidden(features)))
        log_variance: Tensor = self.scale * self.output_norm(self.output(hidden)) + self.shift
        return log_variance.clamp(-_LOG_LIMIT, _LOG_LIMIT).exp()


class UncertaintyModulePosterior(_HeadPosterior):
    """A last layer and its `UncertaintyModule`; PFE has a unit mean, HIB has not."""

    FORMAT, HEAD = UNCERTAINTY_MODULE_FORMAT, "module"

    @staticmethod
    def head_for(_: Mapping[str, Tensor], n_features: int, dim: int) -> UncertaintyModule:
        """Return a module with the shape of the stored module."""
        return UncertaintyModule(n_features, dim)


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
