from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from index_builder.arrays import FeatureBlocks
from index_builder.posteriors.laplace import all_pairs
from index_builder.posteriors.laplace.all_pairs import (
    TrainedLayer,
    class_groups,
    fixed_curvature,
    positives_curvature,
)
from index_builder.posteriors.laplace.curvature import (
    Curvature,
    Split,
    TargetScaling,
    anchor_targets,
)

if TYPE_CHECKING:
    from tests.index_builder.posteriors.conftest import Difference, Oracle, Problem

MARGIN = 0.9

splits = pytest.mark.parametrize("split", ["euclidean", "arccos"])
scalings = pytest.mark.parametrize("scaling", ["per_anchor", "global"])


def _definition(
    problem: Problem, scaling: TargetScaling, margin: float = MARGIN
) -> tuple[Tensor, Tensor, Tensor]:
    """Targets of all ordered pairs, one by one."""
    i, j, same, inside = problem.all_pairs(margin)
    sizes = {label: problem.labels.tolist().count(label) for label in problem.labels.tolist()}
    n_rows, n_anchors = len(problem.labels), sum(size for size in sizes.values() if size > 1)
    targets = []
    for anchor, positive, near in zip(i.tolist(), same.tolist(), inside.tolist(), strict=True):
        size = sizes[int(problem.labels[anchor])]
        if scaling == "per_anchor":
            weight = 0 if size == 1 else 1 / n_anchors
            targets.append(weight / (size - 1) if positive else -weight * near / (n_rows - size))
        else:
            n_pairs = int(same.sum()) if positive else -int((~same).sum())
            targets.append((positive or near) / n_pairs)
    return i, j, torch.tensor(targets, dtype=torch.float64)


@splits
@scalings
@pytest.mark.parametrize("margin", [0.5, MARGIN, 1.3])
def test_fixed_equals_the_sum_over_all_ordered_pairs(
    problem: Problem,
    oracle: Oracle,
    difference: Difference,
    monkeypatch: pytest.MonkeyPatch,
    split: Split,
    scaling: TargetScaling,
    margin: float,
) -> None:
    monkeypatch.setattr(all_pairs, "_ROWS", 4)  # classes and blocks overlap in every way
    computed = fixed_curvature(
        problem.layer,
        anchor_targets(problem.labels, scaling, torch.float64),
        split=split,
        margin=margin,
    )
    pairs = _definition(problem, scaling, margin)
    expected = oracle(problem, *pairs, "fixed", split, anchored=True)
    assert difference(computed, expected) < 1e-12
    if scaling == "global":  # symmetric targets: it does not matter which of the two moves
        assert difference(computed, oracle(problem, *pairs, "fixed", split)) < 1e-12


@splits
@scalings
@pytest.mark.parametrize("max_bytes", [1, 300, 2**30])
def test_positives_equals_the_sum_over_all_ordered_pairs(
    problem: Problem,
    oracle: Oracle,
    difference: Difference,
    monkeypatch: pytest.MonkeyPatch,
    split: Split,
    scaling: TargetScaling,
    max_bytes: int,
) -> None:
    monkeypatch.setattr(all_pairs, "_PRODUCTS", min(max_bytes, 256))  # one dimension at a time
    computed = positives_curvature(
        problem.layer,
        anchor_targets(problem.labels, scaling, torch.float64),
        split=split,
        max_bytes=max_bytes,
    )
    expected = oracle(problem, *_definition(problem, scaling), "positives", split)
    assert difference(computed, expected) < 1e-12


def test_classes_may_be_smaller_than_the_embedding(
    oracle: Oracle, difference: Difference, problem: Problem
) -> None:
    generator = torch.Generator().manual_seed(9)
    wide = replace(
        problem,
        labels=torch.tensor([0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 3]),
        weight=torch.randn(8, 5, generator=generator, dtype=torch.float64),
        bias=torch.randn(8, generator=generator, dtype=torch.float64),
    )
    computed = positives_curvature(
        wide.layer,
        anchor_targets(wide.labels, "per_anchor", torch.float64),
        split="arccos",
    )
    expected = oracle(wide, *_definition(wide, "per_anchor"), "positives", "arccos")
    assert difference(computed, expected) < 1e-12


def test_directions_that_a_narrow_class_does_not_take_up_are_left_out(
    difference: Difference, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(9)
    labels = torch.arange(400) % 2
    features = torch.rand(2, 30, generator=generator, dtype=torch.float64)[labels]
    features += (
        0.1
        * torch.rand(400, 2, generator=generator, dtype=torch.float64)
        @ torch.rand(2, 30, generator=generator, dtype=torch.float64)
    )
    features += 1e-3 * torch.rand(400, 30, generator=generator, dtype=torch.float64)
    weight = torch.randn(16, 30, generator=generator, dtype=torch.float64)
    bias = torch.randn(16, generator=generator, dtype=torch.float64)

    def curvature(dtype: torch.dtype) -> Curvature:
        return positives_curvature(
            TrainedLayer(lambda: features.split(150), labels, weight.to(dtype), bias.to(dtype)),
            anchor_targets(labels, "per_anchor", dtype),
            split="euclidean",
        )

    exact, without_them = curvature(torch.float64), curvature(torch.float32)
    z = torch.nn.functional.normalize(features @ weight.T + bias)[labels == 0]
    assert all_pairs.principal_coordinates(z)[0].shape == (200, 16)
    assert all_pairs.principal_coordinates(z.float())[0].shape[1] < 8
    # What single precision loses depends on the processor; leaving directions out adds little.
    monkeypatch.setattr(all_pairs, "principal_coordinates", lambda rows: (rows, None))
    with_them = curvature(torch.float32)
    assert difference(with_them, exact) < 5e-3
    assert difference(without_them, exact) < 1.5 * difference(with_them, exact)


@pytest.mark.parametrize("margin", [0.3, 1.0, 1.9, 2.0])
def test_per_anchor_fixed_is_never_negative(problem: Problem, margin: float) -> None:
    computed = fixed_curvature(
        problem.layer,
        anchor_targets(problem.labels, "per_anchor", torch.float64),
        split="euclidean",
        margin=margin,
    )
    assert float(computed.weight.min()) >= 0
    assert float(computed.bias.min()) >= 0


def test_global_fixed_is_negative_for_images_of_a_small_class(problem: Problem) -> None:
    # All negatives inside; Prop. F.3 of Warburg et al. 2023 does not hold with Eq. 13's targets.
    computed = fixed_curvature(
        problem.layer,
        anchor_targets(problem.labels, "global", torch.float64),
        split="euclidean",
        margin=2.0,
    )
    assert float(computed.weight.min()) < 0


def test_nothing_is_left_when_every_negative_is_inside(problem: Problem) -> None:
    paired = problem.labels != 7
    without_single = replace(
        problem, features=problem.features[paired], labels=problem.labels[paired]
    )
    computed = fixed_curvature(
        without_single.layer,
        anchor_targets(without_single.labels, "per_anchor", torch.float64),
        split="euclidean",
        margin=2.0,
    )
    assert float(computed.weight.abs().max()) < 1e-12


@splits
def test_single_precision_agrees_with_double(
    problem: Problem, difference: Difference, split: Split
) -> None:
    results = []
    for dtype in (torch.float64, torch.float32):
        weight, bias = problem.weight.to(dtype), problem.bias.to(dtype)
        layer = TrainedLayer(problem.blocks, problem.labels, weight, bias)
        targets = anchor_targets(problem.labels, "per_anchor", dtype)
        results.append(
            fixed_curvature(layer, targets, split=split, margin=MARGIN)
            + positives_curvature(layer, targets, split=split)
        )
    assert results[1].weight.dtype == torch.float32
    assert difference(results[1], results[0]) < 1e-5


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (lambda: [torch.ones(10, 5)], "the blocks hold 10 rows, the labels 11"),
        (lambda: [torch.ones(11, 4)], "wanted \\(n, 5\\)"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(
    problem: Problem, blocks: FeatureBlocks, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fixed_curvature(
            TrainedLayer(blocks, problem.labels, problem.weight, problem.bias),
            anchor_targets(problem.labels, "per_anchor", torch.float64),
            split="euclidean",
            margin=1.0,
        )


def test_what_rounding_leaves_is_no_curvature() -> None:
    labels = torch.cat([torch.full((n,), label) for label, n in enumerate((13, 29, 51, 7, 100))])
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(len(labels), 6, generator=generator)
    weight, bias = torch.randn(4, 6, generator=generator), torch.zeros(4)
    targets = anchor_targets(labels, "per_anchor", torch.float32)
    layer = TrainedLayer(lambda: [features], labels, weight, bias), targets
    left = fixed_curvature(*layer, split="euclidean", margin=2.0)
    assert not left.weight.any()
    assert fixed_curvature(*layer, split="euclidean", margin=1.0).weight.min() > 0


@pytest.mark.parametrize(
    ("max_rows", "sizes"),
    [(1, [[3], [4], [2]]), (6, [[3], [4, 2]]), (7, [[3, 4], [2]]), (9, [[3, 4, 2]])],
)
def test_classes_with_a_pair_are_gathered_by_as_many_rows_as_fit(
    max_rows: int, sizes: list[list[int]]
) -> None:
    labels = torch.tensor([5, 7, 2, 5, 2, 2, 5, 7, 5])  # three of 2, four of 5, two of 7
    groups = list(class_groups(labels, max_rows))
    assert [[len(rows) for rows in group] for group in groups] == sizes
    for rows, label in zip((rows for group in groups for rows in group), (2, 5, 7), strict=True):
        assert rows.tolist() == [row for row in range(9) if labels[row] == label]
    assert list(class_groups(torch.arange(4), max_rows)) == []


@pytest.mark.parametrize(
    "summed",
    [
        positives_curvature,
        all_pairs.positives_traces,
    ],
)
def test_unless_told_the_features_that_are_gathered_take_up_to_a_gigabyte(
    summed: Callable[..., object], problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def groups(labels: Tensor, max_rows: int) -> list[list[Tensor]]:
        asked.append(max_rows)
        return []

    monkeypatch.setattr(all_pairs, "class_groups", groups)
    targets = anchor_targets(problem.labels, "global", torch.float64)
    summed(problem.layer, targets, split="euclidean")
    row_bytes = 8 * problem.weight.shape[1]
    assert [n * row_bytes for n in asked] == [pytest.approx(2**30, abs=row_bytes)]


def test_of_rows_along_an_axis_small_differences_are_kept() -> None:
    """They are all that is left of 1 - z², which the joint terms are subtracted from."""
    z = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 1e-5
    z[:, 0] = 1
    assert all_pairs.principal_coordinates(torch.nn.functional.normalize(z))[0].shape == (50, 3)
