from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from index_builder.objectives import online_laplace as online
from index_builder.objectives.online_laplace import OnlineCurvature, online_step
from index_builder.posteriors.laplace import all_pairs
from index_builder.posteriors.laplace.curvature import Curvature, anchor_targets
from index_builder.posteriors.laplace.fit import LaplacePosterior, fit_laplace
from index_builder.posteriors.laplace.kronecker import KroneckerCurvature, PartialTraces
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from index_builder.posteriors.laplace.minibatches import (
    Drawn,
    MinibatchPlan,
    minibatch_curvature,
    minibatch_loss,
    minibatch_traces,
)
from tests.support.narrowing import instance_of

if TYPE_CHECKING:
    from tests.index_builder.posteriors.conftest import Problem

MARGIN = 0.9


def _start(weight: torch.Tensor, memory_factor: float = 0.1) -> OnlineCurvature[Curvature]:
    return OnlineCurvature.start(
        weight,
        structure="diagonal",
        data_scale=50.0,
        prior_precision=0.8,
        memory_factor=memory_factor,
    )


def variance_of(posterior: LaplacePosterior) -> torch.Tensor:
    """The variance of each weight."""
    variance: torch.Tensor = instance_of(LastLayerPosterior, posterior).weight_variance
    return variance


def test_before_the_first_step_the_posterior_is_the_prior(problem: Problem) -> None:
    posterior = _start(problem.weight).posterior(problem.weight, problem.bias)
    torch.testing.assert_close(
        variance_of(posterior), torch.full((3, 5), 1 / 0.8, dtype=torch.float64)
    )


def test_curvature_is_the_decaying_average_of_what_it_saw() -> None:
    seen = [Curvature(torch.full((2, 3), value), torch.full((2,), value)) for value in (1.0, 4, 2)]
    state = _start(torch.zeros(2, 3), memory_factor=0.25)
    for minibatch in seen:
        state = state.updated(minibatch)
    shares = torch.tensor([0.75**2, 0.75, 1.0])
    expected = 50 * float((shares * torch.tensor([1.0, 4, 2])).sum() / shares.sum())
    curvature = instance_of(Curvature, state.curvature)
    torch.testing.assert_close(curvature.weight, torch.full((2, 3), expected))
    torch.testing.assert_close(curvature.bias, torch.full((2,), expected))


def test_it_is_cut_off_after_averaging() -> None:
    state = _start(torch.zeros(1, 2), memory_factor=0.5)
    for value in (-1.0, 2.0, -3.0):
        state = state.updated(Curvature(torch.tensor([[value, 1.0]]), torch.tensor([value])))
    # The average of the first entry is negative; cut off at every step, it would not be.
    curvature = instance_of(Curvature, state.curvature)
    assert curvature.weight.tolist() == [[0.0, pytest.approx(50.0)]]
    assert float(curvature.bias) == 0


@pytest.mark.slow
@pytest.mark.parametrize("n_samples", [0, 2])
def test_at_a_fixed_network_it_converges_to_the_post_hoc_curvature(n_samples: int) -> None:
    generator = torch.Generator().manual_seed(6)
    labels = torch.arange(24) % 4
    centres = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    features = centres[labels] + 0.5 * torch.randn(24, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    bias = torch.randn(3, generator=generator, dtype=torch.float64)
    # A prior so strong that drawn layers hardly differ from the mean: then both forms agree.
    state = OnlineCurvature.start(
        weight,
        structure="diagonal",
        data_scale=24.0,
        prior_precision=1e8 if n_samples else 1.0,
        memory_factor=1 / 300,
    )
    for rows in MinibatchPlan(800, 3, 4).draw(labels, generator):
        state, _ = online_step(
            state,
            features[rows],
            labels[rows],
            weight,
            bias,
            margin=1.2,
            n_samples=n_samples,
            generator=generator,
        )
    fit = fit_laplace(
        lambda: [features],
        labels,
        weight,
        bias,
        structure="diagonal",
        margin=1.2,
        prior_precision=1.0,
    )
    left, exact = (instance_of(Curvature, one.curvature).weight for one in (state, fit))
    relative = left / (24 * exact) - 1
    assert float(relative.abs().max()) < 0.1
    assert float(relative.abs().mean()) < 0.03


def test_point_form_minimises_the_loss_and_the_prior(problem: Problem) -> None:
    weight = problem.weight.clone().requires_grad_()
    bias = problem.bias.clone().requires_grad_()
    features = problem.features.clone().requires_grad_()
    _, objective = online_step(
        _start(weight), features, problem.labels, weight, bias, margin=MARGIN
    )
    objective.backward()
    computed = [weight.grad, bias.grad, features.grad]
    for tensor in (weight, bias, features):
        tensor.grad = None
    loss = minibatch_loss(features @ weight.T + bias, problem.labels, MARGIN)
    (loss + 0.8 / 50 * 0.5 * (weight.square().sum() + bias.square().sum())).backward()
    for gradient, tensor in zip(computed, (weight, bias, features), strict=True):
        torch.testing.assert_close(gradient, tensor.grad)


def test_expectation_form_averages_over_the_present_posterior(problem: Problem) -> None:
    weight = problem.weight.clone().requires_grad_()
    state = _start(problem.weight, memory_factor=1.0).updated(
        Curvature(torch.rand(3, 5, dtype=torch.float64), torch.rand(3, dtype=torch.float64))
    )
    after, objective = online_step(
        state,
        problem.features,
        problem.labels,
        weight,
        problem.bias,
        margin=MARGIN,
        approximation="full",
        split="arccos",
        n_samples=3,
        generator=torch.Generator().manual_seed(4),
    )
    weights, biases = state.posterior(problem.weight, problem.bias).sample(
        3, torch.Generator().manual_seed(4)
    )
    losses, curvatures = [], []
    for w, b in zip(weights, biases, strict=True):
        losses.append(minibatch_loss(problem.features @ w.T + b, problem.labels, MARGIN))
        curvatures.append(
            minibatch_curvature(
                problem.features,
                problem.labels,
                w,
                b,
                margin=MARGIN,
                approximation="full",
                split="arccos",
            ).weight
        )
    prior = 0.8 / 100 * (problem.weight.square().sum() + problem.bias.square().sum())
    torch.testing.assert_close(objective.detach(), torch.stack(losses).mean() + prior)
    # With a memory factor of one only the last minibatch counts.
    torch.testing.assert_close(after.decayed.weight, 50 * torch.stack(curvatures).mean(0))
    assert not after.decayed.weight.requires_grad
    objective.backward()
    assert weight.grad is not None
    assert float(weight.grad.abs().min()) > 0


def test_a_minibatch_counts_as_it_was_drawn(problem: Problem) -> None:
    layer = (problem.features, problem.labels, problem.weight, problem.bias)
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    drawn = Drawn(targets, MinibatchPlan(1, 9, 99))
    found = []
    for one in (drawn, None):
        state, _ = online_step(
            _start(problem.weight), *layer, margin=MARGIN, approximation="full", drawn=one
        )
        seen = minibatch_curvature(
            *layer, margin=MARGIN, approximation="full", split="euclidean", drawn=one
        )
        found.append(state.average.weight)
        assert torch.equal(found[-1], _start(problem.weight).updated(seen).average.weight)
    assert not torch.allclose(found[0], found[1])


def test_drawing_layers_needs_a_generator(problem: Problem) -> None:
    with pytest.raises(ValueError, match="no generator"):
        online_step(
            _start(problem.weight),
            problem.features,
            problem.labels,
            problem.weight,
            problem.bias,
            margin=MARGIN,
            n_samples=1,
        )


def test_at_the_ends_of_their_ranges_its_numbers_are_taken() -> None:
    assert _start(torch.zeros(2, 3), memory_factor=1.0).memory_factor == 1
    for name in ("data_scale", "prior_precision"):
        state = _start(torch.zeros(2, 3), memory_factor=0.5)
        assert getattr(replace(state, **{name: 1e-9}), name) == 1e-9  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"{name}=0"):
            replace(state, **{name: 0.0})  # type: ignore[arg-type] # of whatever field


@pytest.mark.parametrize("memory_factor", [0.0, 1.1])
def test_a_memory_factor_outside_its_range_is_refused(memory_factor: float) -> None:
    with pytest.raises(ValueError, match="the last in"):
        _start(torch.zeros(2, 3), memory_factor)


def test_drawn_layers_stay_near_the_mean_at_first(problem: Problem) -> None:
    state = replace(_start(problem.weight, memory_factor=0.25), initial_precision=1000.0)
    for step in range(3):
        drawn = state.drawn_from(problem.weight, problem.bias)
        curvature = instance_of(Curvature, state.curvature).weight
        expected = curvature + 0.8 + 1000 * 0.75**step
        torch.testing.assert_close(variance_of(drawn), 1 / expected)
        posterior = state.posterior(problem.weight, problem.bias)  # which forgets none of the data
        torch.testing.assert_close(variance_of(posterior), 1 / (curvature + 0.8))
        one = Curvature(torch.ones(3, 5, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
        state = state.updated(one)


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("n_samples", [0, 2])
def test_kronecker_factors_converge_to_the_post_hoc_ones(
    monkeypatch: pytest.MonkeyPatch, wide: bool, n_samples: int
) -> None:
    if wide:  # more features than are kept whole: bases of minibatches are added up
        monkeypatch.setattr(all_pairs, "MAX_DENSE", 4)
        monkeypatch.setattr(online, "MAX_DENSE", 4)
    generator = torch.Generator().manual_seed(6)
    labels = torch.arange(24) % 4
    centres = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    features = centres[labels] + 0.5 * torch.randn(24, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    bias = torch.randn(3, generator=generator, dtype=torch.float64)
    state = OnlineCurvature.start(
        weight,
        data_scale=24.0,
        prior_precision=1e8 if n_samples else 1.0,
        memory_factor=1 / 300,
    )
    for rows in MinibatchPlan(800, 3, 4).draw(labels, generator):
        state, _ = online_step(
            state,
            features[rows],
            labels[rows],
            weight,
            bias,
            margin=1.2,
            n_samples=n_samples,
            generator=generator,
        )
    fit = fit_laplace(lambda: [features], labels, weight, bias, margin=1.2, prior_scale="isotropic")
    kept, exact = state.curvature, fit.curvature
    assert isinstance(kept, KroneckerCurvature)
    assert isinstance(exact, KroneckerCurvature)
    for ours, theirs in ((kept, exact * 24),):
        dense = [
            one.directions @ torch.diag(one.values) @ one.directions.T for one in (ours, theirs)
        ]
        assert float((dense[0] - dense[1]).abs().max() / dense[1].abs().max()) < 0.1


def test_kronecker_factors_are_the_decaying_average_of_what_was_seen(problem: Problem) -> None:
    state = OnlineCurvature.start(
        problem.weight, data_scale=50.0, prior_precision=0.8, memory_factor=0.25
    )
    posterior = state.posterior(problem.weight, problem.bias)
    expected = (problem.features.square().sum(1, keepdim=True) + 1) / 0.8
    torch.testing.assert_close(posterior.predict(problem.features)[1], expected.expand(-1, 3))
    seen = []
    for margin in (0.7, 0.9, 1.2):
        seen.append(
            minibatch_traces(
                problem.features,
                problem.labels,
                problem.weight,
                problem.bias,
                margin=margin,
                approximation="full",
                split="arccos",
            )
        )
        state = state.updated(seen[-1])
    shares = [0.75**2, 0.75, 1.0]
    average = state.average
    assert isinstance(average, PartialTraces)
    uneven = replace(average, diagonal=torch.arange(1.0, 7.0, dtype=torch.float64))
    found = instance_of(KroneckerCurvature, replace(state, decayed=uneven).curvature)
    assert torch.equal(found.scale, torch.ones_like(found.scale))
    assert not torch.equal(found.scale, uneven.rectified().scale)
    for name in ("features", "outputs", "diagonal"):
        parts = (share * getattr(one, name) for share, one in zip(shares, seen, strict=True))
        expected = 50 * sum(parts) / sum(shares)
        torch.testing.assert_close(getattr(average, name), expected)
    drawn = replace(state, initial_precision=1000.0).drawn_from(problem.weight, problem.bias)
    narrower = drawn.predict(problem.features)[1]
    assert bool(
        (
            narrower < state.posterior(problem.weight, problem.bias).predict(problem.features)[1]
        ).all()
    )


def test_of_more_features_than_are_kept_dense_a_basis_is_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(online, "MAX_DENSE", 3)
    for n_features in (3, 4):
        sums = online.no_curvature("kronecker", torch.ones(2, n_features))
        basis = instance_of(PartialTraces, sums).basis
        assert (basis is None) == (n_features == 3)
