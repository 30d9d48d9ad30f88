from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from index_builder.posteriors.laplace import all_pairs
from index_builder.posteriors.laplace.all_pairs import fixed_curvature, positives_curvature
from index_builder.posteriors.laplace.curvature import (
    Approximation,
    Curvature,
    Split,
    Structure,
    anchor_targets,
)
from index_builder.posteriors.laplace.fit import (
    fit_laplace,
    log_marginal_likelihood,
    tune_prior_precision,
)
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.laplace.minibatches import MinibatchPlan
from model_store.errors import CalibrationError
from tests.support.narrowing import instance_of

if TYPE_CHECKING:
    from tests.index_builder.posteriors.conftest import Oracle, Problem

MARGIN = 0.9


@pytest.mark.parametrize("split", ["euclidean", "arccos"])
def test_variance_is_one_over_scaled_curvature_plus_prior(problem: Problem, split: Split) -> None:
    targets = anchor_targets(problem.labels, "global", torch.float64)
    layer = (problem.blocks, problem.labels, problem.weight, problem.bias)
    curvature = fixed_curvature(problem.layer, targets, split=split, margin=MARGIN)
    fit = fit_laplace(
        *layer,
        split=split,
        structure="diagonal",
        margin=MARGIN,
        scaling="global",
        prior_precision=0.3,
        data_scale=7.0,
    )
    assert float(curvature.weight.min()) < 0  # so that cutting off shows
    expected = 1 / (7 * curvature.weight.clamp_min(0) + 0.3)
    posterior = instance_of(LastLayerPosterior, fit.posterior)
    torch.testing.assert_close(posterior.weight_variance, expected)
    torch.testing.assert_close(posterior.bias_variance, 1 / (7 * curvature.bias.clamp_min(0) + 0.3))
    assert torch.equal(fit.posterior.weight_mean, problem.weight)
    assert fit.prior_chosen_by == "caller"
    assert (fit.prior_precision, fit.data_scale) == (0.3, 7.0)


@pytest.mark.parametrize("split", ["euclidean", "arccos"])
def test_the_curvature_of_positives_alone_is_of_the_split_that_is_asked_for(
    problem: Problem, split: Split
) -> None:
    layer = (problem.blocks, problem.labels, problem.weight, problem.bias)
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    fit = fit_laplace(
        *layer,
        structure="diagonal",
        approximation="positives",
        split=split,
        margin=MARGIN,
        prior_precision=1.0,
    )
    wanted = positives_curvature(problem.layer, targets, split=split).weight.clamp_min(0)
    torch.testing.assert_close(instance_of(Curvature, fit.curvature).weight, wanted)


def test_the_data_count_once_each_and_the_evidence_chooses_where_asked(problem: Problem) -> None:
    layer = (problem.blocks, problem.labels, problem.weight, problem.bias)
    fit = fit_laplace(
        *layer,
        approximation="positives",
        structure="diagonal",
        prior_chosen_by="marginal_likelihood",
        margin=MARGIN,
    )
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    scaled = positives_curvature(problem.layer, targets, split="euclidean") * 11
    tuned = tune_prior_precision(scaled, problem.weight, problem.bias)
    assert fit.data_scale == 11
    assert fit.prior_chosen_by == "marginal_likelihood"
    assert fit.prior_precision == pytest.approx(tuned)
    assert fit.log_marginal_likelihood == pytest.approx(
        log_marginal_likelihood(scaled, problem.weight, problem.bias, tuned)
    )
    assert max(fit.prior_search.values) == pytest.approx(fit.log_marginal_likelihood)
    variance = instance_of(LastLayerPosterior, fit.posterior).weight_variance
    torch.testing.assert_close(variance, 1 / (scaled.weight + tuned))


def test_full_cuts_off_after_the_sum(problem: Problem, oracle: Oracle) -> None:
    # One minibatch that holds everything is exact; some entries of the sum are negative.
    layer = (problem.blocks, problem.labels, problem.weight, problem.bias)
    fit = fit_laplace(
        *layer,
        approximation="full",
        split="arccos",
        structure="diagonal",
        margin=MARGIN,
        prior_precision=1.0,
        seed=0,
        plan=MinibatchPlan(1, 9, 99),
    )
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    i, j, same, inside = problem.all_pairs(MARGIN)
    y = torch.where(same, targets.positive[i], -targets.negative[i] * inside)
    expected = oracle(problem, i, j, y, "full", "arccos")
    assert float(expected.weight.min()) < 0
    curvature = instance_of(Curvature, fit.curvature)
    torch.testing.assert_close(curvature.weight, expected.weight.clamp_min(0))
    torch.testing.assert_close(curvature.bias, expected.bias.clamp_min(0))


def test_the_plan_of_minibatches_is_the_one_that_is_given(problem: Problem) -> None:
    layer = (problem.blocks, problem.labels, problem.weight, problem.bias)

    def mean(plan: MinibatchPlan | None) -> float:
        fit = fit_laplace(*layer, approximation="full", margin=MARGIN, seed=3, plan=plan)
        return fit.curvature.mean

    assert mean(None) == mean(MinibatchPlan())
    assert mean(MinibatchPlan(1, 2, 2)) != mean(None)


@pytest.mark.parametrize("structure", get_args(Structure))
def test_a_fit_says_what_its_curvature_is(problem: Problem, structure: Structure) -> None:
    layer = (problem.blocks, problem.labels, problem.weight, problem.bias)
    fit = fit_laplace(*layer, structure=structure, margin=MARGIN)
    found = fit.curvature
    assert fit.structure == structure
    assert fit.summary() == {
        "mean": found.mean,
        "largest": found.largest,
        "share_zero": found.share_zero,
    }
    assert fit.summary()["largest"] > fit.summary()["mean"] > 0


def test_full_asks_for_a_seed(problem: Problem) -> None:
    with pytest.raises(ValueError, match="give a seed"):
        fit_laplace(
            problem.blocks,
            problem.labels,
            problem.weight,
            problem.bias,
            approximation="full",
            structure="diagonal",
            margin=MARGIN,
        )


def test_training_parameters_are_left_alone(problem: Problem) -> None:
    weight = problem.weight.clone().requires_grad_()
    trained = replace(problem, weight=weight)
    fit = fit_laplace(
        trained.blocks,
        trained.labels,
        trained.weight,
        trained.bias,
        structure="diagonal",
        margin=MARGIN,
    )
    assert not fit.posterior.weight_mean.requires_grad
    assert torch.equal(weight.detach(), problem.weight)


class LargestTensor(TorchDispatchMode):
    """Remembers the most numbers that any tensor made within it holds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no annotation of it
        self.numel = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else [result]:
            if isinstance(part, Tensor):
                self.numel = max(self.numel, part.numel())
        return result


@pytest.mark.parametrize("approximation", get_args(Approximation))
def test_memory_grows_with_the_data_and_not_with_its_pairs(approximation: Approximation) -> None:
    def largest(n_images: int) -> int:
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(n_images, 6, generator=generator)
        weight = torch.randn(3, 6, generator=generator)
        seen = LargestTensor()
        with seen:
            fit_laplace(
                lambda: features.split(1000),
                torch.arange(n_images) % 5,
                weight,
                torch.zeros(3),
                approximation=approximation,
                structure="diagonal",
                margin=1.0,
                prior_precision=1.0,
                seed=0,
                plan=MinibatchPlan(4),
            )
        return seen.numel

    block = all_pairs._ROWS**2  # what the comparison of all pairs holds at once, whatever N
    assert 3000 <= largest(3000) <= block < 3000**2
    assert largest(6000) <= block


@pytest.mark.parametrize(("structure", "fraction"), [("kronecker", 3.0), ("diagonal", 0.01)])
def test_by_default_the_prior_is_relative_to_the_curvature(
    problem: Problem, structure: Structure, fraction: float
) -> None:
    layer = (problem.blocks, problem.labels, problem.weight, problem.bias)
    fits = [
        fit_laplace(*layer, structure=structure, margin=MARGIN, data_scale=scale)
        for scale in (11.0, 1100.0)
    ]
    for fit in fits:
        assert fit.prior_chosen_by == "curvature"
        expected = fraction * fit.data_scale * fit.curvature.mean
        assert fit.prior_precision == pytest.approx(expected)
        assert fit.prior_share == pytest.approx(fraction / (1 + fraction))
    # A hundred times the data leave the shape of the posterior as it is.
    variances = [fit.posterior.predict(problem.features)[1] for fit in fits]
    torch.testing.assert_close(variances[0], 100 * variances[1])


def test_without_curvature_there_is_no_relative_prior(problem: Problem) -> None:
    balanced = torch.arange(10) // 2
    features = problem.features[:10]
    with pytest.raises(CalibrationError, match="every negative is inside the margin"):
        fit_laplace(lambda: [features], balanced, problem.weight, problem.bias, margin=1.9999)
