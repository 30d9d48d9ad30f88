from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from index_builder.posteriors.laplace import minibatches
from index_builder.posteriors.laplace.all_pairs import fixed_curvature, positives_curvature
from index_builder.posteriors.laplace.curvature import (
    Approximation,
    Curvature,
    Split,
    TargetScaling,
    anchor_targets,
)
from index_builder.posteriors.laplace.minibatches import (
    Drawn,
    MinibatchPlan,
    estimated,
    minibatch_curvature,
    minibatch_loss,
    pair_curvature,
)

if TYPE_CHECKING:
    from tests.index_builder.posteriors.conftest import Difference, Problem

MARGIN = 0.9


def _all_pairs_curvature(
    problem: Problem, scaling: TargetScaling, approximation: Approximation, split: Split
) -> Curvature:
    i, j, same, inside = problem.all_pairs(MARGIN)
    targets = anchor_targets(problem.labels, scaling, torch.float64)
    y = torch.where(same, targets.positive[i], -targets.negative[i] * inside)
    return pair_curvature(
        problem.features,
        problem.weight,
        problem.bias,
        i,
        j,
        y,
        approximation=approximation,
        split=split,
    )


@pytest.mark.parametrize("split", ["euclidean", "arccos"])
@pytest.mark.parametrize("scaling", ["per_anchor", "global"])
def test_full_is_estimated_without_bias_for_unbalanced_classes(
    problem: Problem, difference: Difference, split: Split, scaling: TargetScaling
) -> None:
    targets = anchor_targets(problem.labels, scaling, torch.float64)
    generator = torch.Generator().manual_seed(1)
    estimates = [
        estimated(
            minibatch_curvature,
            problem.layer,
            targets,
            MinibatchPlan(n_minibatches=25, n_labels=3, n_images=2),
            margin=MARGIN,
            split=split,
            generator=generator,
        ).weight
        for _ in range(20)
    ]
    stacked = torch.stack(estimates)
    standard_error = stacked.std(0) / len(estimates) ** 0.5
    exact = _all_pairs_curvature(problem, scaling, "full", split).weight
    deviations = (stacked.mean(0) - exact) / standard_error
    assert float(deviations.abs().max()) < 4.5  # 15 entries, Student's t with 19 degrees
    assert float((standard_error / exact.abs().max()).max()) < 0.3  # it says something


def test_minibatches_of_the_whole_data_set_are_exact(
    problem: Problem, difference: Difference
) -> None:
    computed = estimated(
        minibatch_curvature,
        problem.layer,
        anchor_targets(problem.labels, "per_anchor", torch.float64),
        MinibatchPlan(n_minibatches=1, n_labels=9, n_images=99),
        margin=MARGIN,
        split="euclidean",
        generator=torch.Generator(),
    )
    expected = _all_pairs_curvature(problem, "per_anchor", "full", "euclidean")
    assert difference(computed, expected) < 1e-12


def assert_unbiased(estimates: Tensor, exact: Tensor) -> None:
    """Independent estimates (n, D, F) are right on average, and their average says something."""
    standard_error = estimates.std(0) / len(estimates) ** 0.5
    assert float(((estimates.mean(0) - exact) / standard_error).abs().max()) < 4
    assert float((standard_error / exact.abs().max()).max()) < 0.1


@pytest.mark.parametrize("approximation", ["full", "positives", "fixed"])
def test_equation_20_is_unbiased_for_balanced_classes(
    problem: Problem, approximation: Approximation
) -> None:
    balanced = replace(
        problem, features=problem.features[:9], labels=torch.tensor([0, 1, 2, 2, 1, 0, 0, 1, 2])
    )
    plan = MinibatchPlan(n_minibatches=600, n_labels=2, n_images=2)
    estimates = torch.stack(
        [
            minibatch_curvature(
                balanced.features[rows],
                balanced.labels[rows],
                balanced.weight,
                balanced.bias,
                margin=MARGIN,
                approximation=approximation,
                split="euclidean",
            ).weight
            for rows in plan.draw(balanced.labels, torch.Generator().manual_seed(3))
        ]
    )
    exact = _all_pairs_curvature(balanced, "global", approximation, "euclidean").weight
    assert_unbiased(estimates, exact)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["euclidean", "arccos"])
@pytest.mark.parametrize("approximation", ["full", "positives", "fixed"])
def test_weighted_minibatches_are_unbiased_for_unbalanced_classes(
    problem: Problem, approximation: Approximation, split: Split
) -> None:
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    plan = MinibatchPlan(n_minibatches=1000, n_labels=3, n_images=2)
    estimates = torch.stack(
        [
            minibatch_curvature(
                problem.features[rows],
                problem.labels[rows],
                problem.weight,
                problem.bias,
                margin=MARGIN,
                approximation=approximation,
                split=split,
                drawn=Drawn(targets.of(rows), plan),
            ).weight
            for rows in plan.draw(problem.labels, torch.Generator().manual_seed(3))
        ]
    )
    layer = problem.layer, targets
    if approximation == "fixed":
        exact = fixed_curvature(*layer, split=split, margin=MARGIN).weight
    elif approximation == "positives":
        exact = positives_curvature(*layer, split=split).weight
    else:
        exact = _all_pairs_curvature(problem, "per_anchor", "full", split).weight
    assert_unbiased(estimates, exact)


def test_only_fixed_can_be_anchored(problem: Problem) -> None:
    one = torch.tensor([0])
    with pytest.raises(ValueError, match="cannot be anchored"):
        pair_curvature(
            problem.features,
            problem.weight,
            problem.bias,
            one,
            one + 1,
            torch.ones(1, dtype=torch.float64),
            approximation="full",
            split="euclidean",
            anchored=True,
        )


def test_minibatch_loss_is_the_mean_over_each_kind_of_pair(problem: Problem) -> None:
    positive, negative = [], []
    z = torch.nn.functional.normalize(problem.embeddings)
    for row in range(len(z)):
        for other in range(row):
            squared = float((z[row] - z[other]).square().sum())
            if problem.labels[row] == problem.labels[other]:
                positive.append(squared / 2)
            else:
                negative.append(max(0.0, MARGIN**2 - squared) / 2)
    expected = sum(positive) / len(positive) + sum(negative) / len(negative)
    assert float(minibatch_loss(problem.embeddings, problem.labels, MARGIN)) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize(
    ("name", "least"), [("n_minibatches", 1), ("n_labels", 2), ("n_images", 2)]
)
def test_a_plan_needs_a_minibatch_of_two_labels_and_two_images(name: str, least: int) -> None:
    assert getattr(MinibatchPlan(**{name: least}), name) == least
    with pytest.raises(ValueError, match=f"{name}={least - 1}"):
        MinibatchPlan(**{name: least - 1})


def test_a_minibatch_has_so_many_labels_and_so_many_images_of_each() -> None:
    labels = torch.arange(5).repeat_interleave(7)
    drawn = MinibatchPlan(4, 3, 2).draw(labels, torch.Generator().manual_seed(0))
    assert len(drawn) == 4
    for rows in drawn:
        assert len(rows.unique()) == len(rows) == 6
        of_label = torch.unique(labels[rows], return_counts=True)[1]
        assert of_label.tolist() == [2, 2, 2]


def test_negatives_just_at_the_margin_are_inside_it() -> None:
    h = torch.tensor([[2.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    first, second = torch.triu_indices(3, 3, offset=1)
    for margin, inside in ((0.0, [True, False, False]), (2.0, [True] * 3)):
        assert minibatches._is_inside(h, first, second, margin).tolist() == inside
