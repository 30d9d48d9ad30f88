"""The torch bridge: the core's values, and gradients by finite differences."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from index_builder.objectives.von_mises_fisher import (
    kl_divergence_to_uniform,
    log_normaliser,
    mean_resultant_length,
)
from model_store import sphere

Bridge = Callable[[Tensor, int], Tensor]
ALL = [log_normaliser, mean_resultant_length, kl_divergence_to_uniform]
DIMS = [2, 3, 17, 128, 2048]


def concentrations() -> Tensor:
    kappa = torch.tensor([[0.5, 3.0, 12.0], [40.0, 170.0, 900.0]], dtype=torch.float64)
    return kappa.requires_grad_()


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("dim", DIMS)
def test_values_are_the_cores(function: Bridge, dim: int) -> None:
    kappa = concentrations()
    expected = getattr(sphere, function.__name__)(kappa.detach().numpy(), dim)
    np.testing.assert_array_equal(function(kappa, dim).detach().numpy(), expected)


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("dim", DIMS)
def test_gradients(function: Bridge, dim: int) -> None:
    # Small slopes at large κ: an absolute tolerance of 1e-5 would hide them.
    assert torch.autograd.gradcheck(
        lambda kappa: function(kappa, dim), concentrations(), eps=1e-4, atol=1e-8, rtol=1e-4
    )


@pytest.mark.parametrize("dim", DIMS)
def test_second_derivative_of_the_normaliser(dim: int) -> None:
    assert torch.autograd.gradgradcheck(
        lambda kappa: log_normaliser(kappa, dim), concentrations(), eps=1e-4, atol=1e-8, rtol=1e-4
    )


@pytest.mark.parametrize("dim", DIMS)
def test_gradients_at_the_uniform_distribution(dim: int) -> None:
    for function, slope in zip(ALL, (0.0, 1 / dim, 0.0), strict=True):
        kappa = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(kappa, dim).sum(), kappa)
        assert gradient.item() == pytest.approx(slope, abs=1e-15)


@pytest.mark.parametrize("function", ALL)
def test_float32_in_and_out_but_not_within(function: Bridge) -> None:
    kappa = torch.tensor([0.01, 5.0, 3000.0], requires_grad=True)
    value = function(kappa, 512)
    (gradient,) = torch.autograd.grad(value.sum(), kappa)
    assert value.dtype == gradient.dtype == torch.float32
    double = kappa.detach().double().requires_grad_()
    exact = function(double, 512)
    (exact_gradient,) = torch.autograd.grad(exact.sum(), double)
    torch.testing.assert_close(value.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=1e-6, atol=0)


def test_expected_likelihood_loss_can_be_written_with_it() -> None:
    """The gradient of log ∫ p q reaches both embeddings through the length of their sum."""
    dim = 6
    nu_p, nu_q = torch.randn(
        2, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()

    def log_expected_likelihood(p: Tensor, q: Tensor) -> Tensor:
        resultant = log_normaliser((p + q).norm(), dim)
        return log_normaliser(p.norm(), dim) + log_normaliser(q.norm(), dim) - resultant

    assert torch.autograd.gradcheck(log_expected_likelihood, (nu_p, nu_q))
    value = log_expected_likelihood(nu_p, nu_q).item()
    cosine = torch.cosine_similarity(nu_p, nu_q, dim=0).item()
    expected = sphere.log_expected_likelihood(nu_p.norm().item(), nu_q.norm().item(), cosine, dim)
    assert value == pytest.approx(float(expected), rel=1e-12)


def test_training_on_it_finds_the_concentration() -> None:
    """Maximum likelihood: A_D(κ) becomes the mean cosine of the draws."""
    dim, mean_cosine = 24, 0.62
    log_kappa = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([log_kappa], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        kappa = log_kappa.exp()
        loss = -(log_normaliser(kappa, dim) + kappa * mean_cosine)
        loss.backward()
        return loss

    optimiser.step(closure)
    expected = sphere.concentration_of(mean_cosine, dim)
    assert log_kappa.exp().item() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("function", ALL)
def test_refuses_what_is_no_concentration(function: Bridge) -> None:
    with pytest.raises(ValueError, match="finite and ≥ 0"):
        function(torch.tensor([1.0, float("nan")]), 4)
