from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from index_builder.posteriors.laplace import all_pairs
from index_builder.posteriors.laplace.all_pairs import (
    fixed_curvature,
    fixed_traces,
    positives_traces,
)
from index_builder.posteriors.laplace.curvature import Approximation, Split, anchor_targets
from index_builder.posteriors.laplace.kronecker import PartialTraces
from index_builder.posteriors.laplace.minibatches import pair_traces

if TYPE_CHECKING:
    from tests.index_builder.posteriors.conftest import Problem

MARGIN = 0.9

splits = pytest.mark.parametrize("split", ["euclidean", "arccos"])
DenseOracle = Callable[..., Tensor]


def traces_of(dense: Tensor, dim: int) -> PartialTraces:
    """Traces of a dense (D (F + 1)) square matrix, outputs first."""
    blocks = dense.view(dim, len(dense) // dim, dim, len(dense) // dim)
    features, outputs = torch.einsum("dfdg->fg", blocks), torch.einsum("dfef->de", blocks)
    return PartialTraces(features, outputs, features.diagonal())


def assert_same(computed: PartialTraces, expected: PartialTraces) -> None:
    for ours, theirs in (
        (computed.features, expected.features),
        (computed.outputs, expected.outputs),
        (computed.diagonal, expected.diagonal),
    ):
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-12


def all_targets(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    i, j, same, inside = problem.all_pairs(MARGIN)
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    return i, j, targets.of_pairs(i, same, inside)


@splits
def test_fixed_equals_the_dense_sum_over_all_ordered_pairs(
    problem: Problem, dense_oracle: DenseOracle, monkeypatch: pytest.MonkeyPatch, split: Split
) -> None:
    monkeypatch.setattr(all_pairs, "_ROWS", 4)
    layer = problem.layer
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    computed = fixed_traces(layer, targets, split=split, margin=MARGIN)
    dense = dense_oracle(problem, *all_targets(problem), "fixed", split, anchored=True)
    assert_same(computed, traces_of(dense, 3))


@splits
@pytest.mark.parametrize("max_bytes", [1, 2**30])
def test_positives_equals_the_dense_sum(
    problem: Problem, dense_oracle: DenseOracle, split: Split, max_bytes: int
) -> None:
    layer = problem.layer
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    computed = positives_traces(layer, targets, split=split, max_bytes=max_bytes)
    dense = dense_oracle(problem, *all_targets(problem), "positives", split)
    assert_same(computed, traces_of(dense, 3))


@pytest.mark.parametrize("dim", [1, 2, 8])
def test_positives_of_embeddings_narrower_and_wider_than_classes(
    problem: Problem, dense_oracle: DenseOracle, dim: int
) -> None:
    generator = torch.Generator().manual_seed(9)
    other = replace(
        problem,
        weight=torch.randn(dim, 5, generator=generator, dtype=torch.float64),
        bias=torch.randn(dim, generator=generator, dtype=torch.float64),
    )
    layer = other.layer
    targets = anchor_targets(other.labels, "per_anchor", torch.float64)
    computed = positives_traces(layer, targets, split="euclidean")
    dense = dense_oracle(other, *all_targets(other), "positives", "euclidean")
    expected = traces_of(dense, dim)
    torch.testing.assert_close(computed.features, expected.features, atol=1e-14, rtol=1e-12)
    torch.testing.assert_close(computed.outputs, expected.outputs, atol=1e-14, rtol=1e-12)


@splits
@pytest.mark.parametrize("approximation", ["full", "positives", "fixed"])
def test_given_pairs_equal_the_dense_sum(
    problem: Problem, dense_oracle: DenseOracle, approximation: Approximation, split: Split
) -> None:
    pairs = all_targets(problem)
    computed = pair_traces(
        problem.features,
        problem.weight,
        problem.bias,
        *pairs,
        approximation=approximation,
        split=split,
    )
    assert_same(computed, traces_of(dense_oracle(problem, *pairs, approximation, split), 3))


def test_diagonals_are_sums_of_the_diagonal_curvature(problem: Problem) -> None:
    layer = problem.layer
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    diagonal = fixed_curvature(layer, targets, split="euclidean", margin=MARGIN)
    traces = fixed_traces(layer, targets, split="euclidean", margin=MARGIN)
    entries = torch.cat([diagonal.weight, diagonal.bias[:, None]], 1)
    torch.testing.assert_close(traces.features.diagonal(), entries.sum(0))
    torch.testing.assert_close(traces.diagonal, entries.sum(0))
    torch.testing.assert_close(traces.outputs.diagonal(), entries.sum(1))


@pytest.mark.parametrize("positives", [False, True])
def test_within_a_basis_that_holds_the_features_nothing_is_lost(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, positives: bool
) -> None:
    monkeypatch.setattr(all_pairs, "MAX_DENSE", 40)
    generator = torch.Generator().manual_seed(2)
    turn = torch.linalg.qr(torch.randn(50, 5, generator=generator, dtype=torch.float64))[0].T
    wide = replace(problem, features=problem.features @ turn, weight=problem.weight @ turn)
    basis = wide.layer.basis()
    assert basis is not None
    assert basis.shape == (51, 6)  # eleven images in five directions, and the bias
    torch.testing.assert_close(basis.T @ basis, torch.eye(6, dtype=torch.float64))
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    layer = wide.layer
    if positives:
        inside = positives_traces(layer, targets, split="arccos", basis=basis)
        whole = positives_traces(layer, targets, split="arccos")
    else:
        inside = fixed_traces(layer, targets, split="arccos", margin=MARGIN, basis=basis)
        whole = fixed_traces(layer, targets, split="arccos", margin=MARGIN)
    torch.testing.assert_close(basis @ inside.features @ basis.T, whole.features)
    torch.testing.assert_close(inside.outputs, whole.outputs)
    torch.testing.assert_close(inside.diagonal, whole.diagonal)


def test_few_features_need_no_basis(problem: Problem) -> None:
    assert problem.layer.basis() is None


@pytest.mark.parametrize("fewer", [0, 1])
def test_up_to_so_many_features_are_kept_whole(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, fewer: int
) -> None:
    n_features = problem.weight.shape[1]
    monkeypatch.setattr(all_pairs, "MAX_DENSE", n_features - fewer)
    basis = problem.layer.basis()
    of_pairs = pair_traces(
        problem.features,
        problem.weight,
        problem.bias,
        torch.tensor([0, 1]),
        torch.tensor([2, 3]),
        torch.tensor([1.0, -0.5]).double(),
        approximation="full",
        split="euclidean",
    )
    assert (basis is None) == (of_pairs.basis is None) == (fewer == 0)


def test_of_more_directions_than_are_kept_it_is_the_main_ones(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_pairs, "MAX_DENSE", 0)
    every = problem.layer.basis()
    monkeypatch.setattr(all_pairs, "MAX_RANK", 3)
    main = problem.layer.basis()
    assert every is not None
    assert main is not None
    assert every.shape[1] > main.shape[1] == 3
    torch.testing.assert_close(main @ main.T, every[:, :3] @ every[:, :3].T)


@pytest.mark.parametrize("approximation", ["full", "fixed"])
def test_minibatches_of_wide_features_add_up(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, approximation: Approximation
) -> None:
    def summed() -> PartialTraces:
        total = None
        for rows in (torch.arange(5), torch.arange(4, 11)):
            first, second = torch.triu_indices(len(rows), len(rows), offset=1)
            same = problem.labels[rows][first] == problem.labels[rows][second]
            part = pair_traces(
                problem.features[rows],
                problem.weight,
                problem.bias,
                first,
                second,
                torch.where(same, 1.0, -0.1).double(),
                approximation=approximation,
                split="euclidean",
            )
            total = part if total is None else total + part * 0.5
        assert total is not None
        return total

    whole = summed()
    monkeypatch.setattr(all_pairs, "MAX_DENSE", 4)
    parts = summed()
    assert parts.basis is not None
    torch.testing.assert_close(parts.basis @ parts.features @ parts.basis.T, whole.features)
    torch.testing.assert_close(parts.outputs, whole.outputs)
    torch.testing.assert_close(parts.diagonal, whole.diagonal)
    with pytest.raises(ValueError, match="has a basis"):
        whole + parts
