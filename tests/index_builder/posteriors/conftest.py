"""An independent oracle: Jacobians and Hessians by automatic differentiation, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from index_builder.posteriors.laplace.all_pairs import TrainedLayer
from index_builder.posteriors.laplace.curvature import Approximation, Curvature, Split

Oracle = Callable[..., Curvature]
Difference = Callable[[Curvature, Curvature], float]


@dataclass(frozen=True)
class Problem:
    """A last layer and images with labels: N, D and F differ, classes are unbalanced."""

    features: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor

    def blocks(self) -> Iterator[Tensor]:
        """Features in blocks whose borders are nobody else's."""
        return iter(self.features.split(3))

    @property
    def layer(self) -> TrainedLayer:
        return TrainedLayer(self.blocks, self.labels, self.weight, self.bias)

    @property
    def embeddings(self) -> Tensor:
        return self.features @ self.weight.T + self.bias

    def all_pairs(self, margin: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All ordered pairs i ≠ j: i, j, same label, inside the margin."""
        n_rows = len(self.labels)
        i, j = torch.cartesian_prod(torch.arange(n_rows), torch.arange(n_rows)).T
        i, j = i[i != j], j[i != j]
        z = torch.nn.functional.normalize(self.embeddings)
        inside = (z[i] - z[j]).norm(dim=1) <= margin
        return i, j, self.labels[i] == self.labels[j], inside


LABELS = [2, 0, 2, 1, 2, 0, 2, 2, 1, 7, 2]
"""Six of one label, two of two others, and one image alone."""


@pytest.fixture
def problem() -> Problem:
    generator = torch.Generator().manual_seed(5)
    features = torch.randn(len(LABELS), 5, generator=generator, dtype=torch.float64).relu() + 0.1
    weight = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    bias = torch.randn(3, generator=generator, dtype=torch.float64)
    return Problem(features, torch.tensor(LABELS), weight, bias)


def _euclidean(pair: Tensor) -> Tensor:
    first, second = pair.chunk(2)
    return 0.5 * (first - second).square().sum()


def _arccos(pair: Tensor) -> Tensor:
    first, second = pair.chunk(2)
    cosine: Tensor = first @ second / (first.norm() * second.norm())
    return 1 - cosine


def dense_curvature(
    problem: Problem,
    first: Tensor,
    second: Tensor,
    targets: Tensor,
    approximation: Approximation,
    split: Split,
    *,
    anchored: bool = False,
) -> Curvature:
    """Diagonal of `dense_matrix`, as the weights and biases that it belongs to."""
    dim, width = problem.weight.shape
    entries = dense_matrix(
        problem, first, second, targets, approximation, split, anchored=anchored
    ).diagonal()
    entries = entries.view(dim, width + 1)
    return Curvature(entries[:, :-1], entries[:, -1])


def dense_matrix(
    problem: Problem,
    first: Tensor,
    second: Tensor,
    targets: Tensor,
    approximation: Approximation,
    split: Split,
    *,
    anchored: bool = False,
) -> Tensor:
    """Σ_p y_p (J_i, J_j)ᵀ ∇²l (J_i, J_j) by (W, b), row by row; anchored: twice i's block alone."""
    dim, width = problem.weight.shape

    def outputs(parameters: Tensor) -> Tensor:
        layer = parameters.view(dim, width + 1)
        h = problem.features @ layer[:, :-1].T + layer[:, -1]
        return h / h.norm(dim=1, keepdim=True) if split == "euclidean" else h

    parameters = torch.cat([problem.weight, problem.bias[:, None]], 1).flatten()
    jacobians, at = jacrev(outputs)(parameters), outputs(parameters)
    loss = _euclidean if split == "euclidean" else _arccos
    blocks = vmap(jacrev(jacrev(loss)))(torch.cat([at[first], at[second]], 1))
    if approximation == "positives":
        targets = targets.clamp_min(0)
    if approximation == "fixed":
        blocks[:, :dim, dim:] = 0
        blocks[:, dim:, :dim] = 0
    if anchored:
        blocks[:, dim:, dim:] = 0
        blocks = 2 * blocks
    joint = torch.cat([jacobians[first], jacobians[second]], 1)
    return torch.einsum("p,pak,pab,pbl->kl", targets, joint, blocks, joint)


@pytest.fixture
def oracle() -> Oracle:
    return dense_curvature


@pytest.fixture
def dense_oracle() -> Callable[..., Tensor]:
    return dense_matrix


def largest_relative_difference(computed: Curvature, expected: Curvature) -> float:
    """Of the entries, relative to the largest expected one."""
    differences = (
        (computed.weight - expected.weight).abs().max() / expected.weight.abs().max(),
        (computed.bias - expected.bias).abs().max() / expected.bias.abs().max(),
    )
    return float(max(differences))


@pytest.fixture
def difference() -> Difference:
    return largest_relative_difference
