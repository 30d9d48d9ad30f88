from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from index_builder.posteriors.laplace import minibatches
from index_builder.posteriors.laplace.curvature import Approximation, Curvature, Split
from index_builder.posteriors.laplace.minibatches import minibatch_loss, pair_curvature

if TYPE_CHECKING:
    from tests.index_builder.posteriors.conftest import Difference, Oracle, Problem

VARIANTS = list(itertools.product(["full", "positives", "fixed"], ["euclidean", "arccos"]))
variants = pytest.mark.parametrize(("approximation", "split"), VARIANTS)


def _some_pairs(problem: Problem, n_pairs: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Random pairs, some of them twice or mirrored, with targets of both signs and zeros."""
    generator = torch.Generator().manual_seed(2)
    first, second = torch.randint(len(problem.labels), (2, n_pairs), generator=generator)
    first, second = first[first != second], second[first != second]
    targets = torch.randn(len(first), generator=generator, dtype=torch.float64)
    targets[::7] = 0
    return first, second, targets


@variants
@pytest.mark.parametrize("gather_cost", [0, 10**6], ids=["by pairs", "by dimensions"])
def test_equals_jacobians_and_hessians_by_autograd(
    problem: Problem,
    oracle: Oracle,
    difference: Difference,
    monkeypatch: pytest.MonkeyPatch,
    approximation: Approximation,
    split: Split,
    gather_cost: int,
) -> None:
    monkeypatch.setattr(minibatches, "_GATHER_COST", gather_cost)
    monkeypatch.setattr(minibatches, "_ELEMENTS", 25)  # several blocks
    chosen = _some_pairs(problem, 40 if gather_cost else 9)
    computed = pair_curvature(
        problem.features,
        problem.weight,
        problem.bias,
        *chosen,
        approximation=approximation,
        split=split,
    )
    assert difference(computed, oracle(problem, *chosen, approximation, split)) < 1e-12


@variants
def test_wide_features_are_cut_into_columns(
    difference: Difference, approximation: Approximation, split: Split
) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(6, 2500, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 2500, generator=generator, dtype=torch.float64)
    bias = torch.randn(2, generator=generator, dtype=torch.float64)
    first, second = torch.triu_indices(6, 6, 1)
    targets = torch.randn(len(first), generator=generator, dtype=torch.float64)
    h = features @ weight.T + bias
    norms = h.norm(dim=1, keepdim=True)
    u, r = h / norms, norms
    expected = torch.zeros_like(weight)
    for i, j, y in zip(first, second, targets, strict=True):
        if approximation == "positives" and y < 0:
            continue
        cosine = u[i] @ u[j]
        own_i, own_j = 1 - u[i] ** 2, 1 - u[j] ** 2
        if split == "arccos":
            own_i = cosine + 2 * u[i] * u[j] - 3 * cosine * u[i] ** 2
            own_j = cosine + 2 * u[i] * u[j] - 3 * cosine * u[j] ** 2
        expected += y * torch.outer(own_i / r[i] ** 2, features[i] ** 2)
        expected += y * torch.outer(own_j / r[j] ** 2, features[j] ** 2)
        if approximation != "fixed":
            joint = (1 - u[i] ** 2 - u[j] ** 2 + cosine * u[i] * u[j]) / (r[i] * r[j])
            expected -= 2 * y * torch.outer(joint, features[i] * features[j])
    computed = pair_curvature(
        features, weight, bias, first, second, targets, approximation=approximation, split=split
    )
    assert float((computed.weight - expected).abs().max() / expected.abs().max()) < 1e-12


def test_full_arccos_is_the_exact_hessian_of_the_loss(
    problem: Problem, difference: Difference
) -> None:
    # The layer is linear and the rest belongs to the loss: Gauss-Newton leaves nothing out.
    dim, width = problem.weight.shape
    margin = 0.9

    def loss(parameters: Tensor) -> Tensor:
        weight, bias = parameters[: dim * width].view(dim, width), parameters[dim * width :]
        return minibatch_loss(problem.features @ weight.T + bias, problem.labels, margin)

    diagonal = jacrev(jacrev(loss))(torch.cat([problem.weight.flatten(), problem.bias])).diagonal()
    i, j, same, inside = problem.all_pairs(margin)
    targets = torch.where(same, 1.0 / same.sum(), -inside.double() / (~same).sum()).double()
    computed = pair_curvature(
        problem.features,
        problem.weight,
        problem.bias,
        i,
        j,
        targets,
        approximation="full",
        split="arccos",
    )
    exact = Curvature(diagonal[: dim * width].view(dim, width), diagonal[dim * width :])
    assert difference(computed, exact) < 1e-7


def test_fixed_is_the_hessian_of_a_loss_with_the_same_value_and_gradient(
    problem: Problem, difference: Difference
) -> None:
    """L(sg z_i, z_j) + L(z_i, sg z_j) - sg L, with 'sg' a constant at the present parameters."""
    dim, width = problem.weight.shape
    first, second, targets = _some_pairs(problem)
    at = torch.cat([problem.weight.flatten(), problem.bias])

    def embeddings(parameters: Tensor) -> Tensor:
        weight, bias = parameters[: dim * width].view(dim, width), parameters[dim * width :]
        return problem.features @ weight.T + bias

    def pair_losses(h: Tensor, g: Tensor) -> Tensor:
        return targets @ (1 - torch.cosine_similarity(h[first], g[second]))

    def stopped(parameters: Tensor) -> Tensor:
        moving, still = embeddings(parameters), embeddings(at)
        return pair_losses(moving, still) + pair_losses(still, moving) - pair_losses(still, still)

    def plain(parameters: Tensor) -> Tensor:
        return pair_losses(embeddings(parameters), embeddings(parameters))

    torch.testing.assert_close(stopped(at), plain(at))
    torch.testing.assert_close(jacrev(stopped)(at), jacrev(plain)(at))
    diagonal = jacrev(jacrev(stopped))(at).diagonal()
    computed = pair_curvature(
        problem.features,
        problem.weight,
        problem.bias,
        first,
        second,
        targets,
        approximation="fixed",
        split="arccos",
    )
    expected = Curvature(diagonal[: dim * width].view(dim, width), diagonal[dim * width :])
    assert difference(computed, expected) < 1e-12


@variants
def test_an_image_paired_with_itself_counts_nothing(
    problem: Problem, approximation: Approximation, split: Split
) -> None:
    rows = torch.tensor([4, 4, 1])
    computed = pair_curvature(
        problem.features,
        problem.weight,
        problem.bias,
        rows,
        rows,
        torch.ones(3, dtype=torch.float64),
        approximation=approximation,
        split=split,
    )
    assert float(computed.weight.abs().max()) == 0
    assert float(computed.bias.abs().max()) == 0


@variants
def test_single_precision_agrees_with_double(
    problem: Problem, difference: Difference, approximation: Approximation, split: Split
) -> None:
    first, second, targets = _some_pairs(problem)
    double, single = (
        pair_curvature(
            problem.features.to(dtype),
            problem.weight.to(dtype),
            problem.bias.to(dtype),
            first,
            second,
            targets.to(dtype),
            approximation=approximation,
            split=split,
        )
        for dtype in (torch.float64, torch.float32)
    )
    assert single.weight.dtype == torch.float32
    assert difference(single, double) < 1e-5
