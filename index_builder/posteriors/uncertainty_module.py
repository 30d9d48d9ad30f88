"""The uncertainty module of PFE and HIB: a second head that predicts the variance of an image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from index_builder.networks import MetricEncoder
from index_builder.networks.initialisation import drawn_from
from index_builder.posteriors.variance_head import UNIT_MEAN

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


class UncertaintyModulePosterior(nn.Module):
    """A last layer and its uncertainty module, with the interface of `Posterior`.

    Parameters
    ----------
    unit_mean : whether the mean is normalised to unit length, as in PFE. If False, the mean is the
        output of the last layer, as in HIB.
    """

    def __init__(
        self, last_layer: nn.Linear, module: UncertaintyModule, *, unit_mean: bool
    ) -> None:
        super().__init__()
        self.last_layer = last_layer
        self.module = module
        self.unit_mean = unit_mean
        self.eval().requires_grad_(requires_grad=False)

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the embedding, (B, D) each, of ``features`` (B, F)."""
        mean = self.last_layer(features)
        return nn.functional.normalize(mean) if self.unit_mean else mean, self.module(features)

    def save(self, path: Path) -> None:
        """Write layer and module as safetensors."""
        tensors = {name: value.contiguous() for name, value in self.state_dict().items()}
        tensors[UNIT_MEAN] = torch.tensor(self.unit_mean)
        save_file(tensors, path, metadata={"format": UNCERTAINTY_MODULE_FORMAT})

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> UncertaintyModulePosterior:
        """The posterior that `save` wrote."""
        layers = {name: value for name, value in state.items() if name != UNIT_MEAN}
        dim, n_features = state["last_layer.weight"].shape
        posterior = cls(
            nn.Linear(n_features, dim),
            UncertaintyModule(n_features, dim),
            unit_mean=bool(state[UNIT_MEAN]),
        )
        posterior.load_state_dict(layers)
        return posterior
