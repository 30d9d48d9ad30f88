"""The torch bridge: the core's values, and gradients by finite differences."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from index_builder.objectives.von_mises_fisher import (
    kl_divergence,
    kl_divergence_to_uniform,
    log_bhattacharyya_coefficient,
    log_expected_likelihood,
    log_normaliser,
    mean_resultant_length,
    sample_von_mises_fisher,
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


@pytest.mark.parametrize("dim", [3, 128, 2048])
@pytest.mark.parametrize(
    "function", [kl_divergence, log_expected_likelihood, log_bhattacharyya_coefficient]
)
def test_divergences_are_the_cores(function: Callable[..., Tensor], dim: int) -> None:
    kappa = torch.tensor([0.3, 12.0, 170.0], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([4.0, 50.0, 90.0], dtype=torch.float64, requires_grad=True)
    cosine = torch.tensor([-0.7, 0.2, 0.95], dtype=torch.float64, requires_grad=True)
    value = function(kappa, other, cosine, dim)
    arrays = (each.detach().numpy() for each in (kappa, other, cosine))
    expected = getattr(sphere, function.__name__)(*arrays, dim)
    np.testing.assert_allclose(value.detach().numpy(), expected, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(
        lambda *of: function(*of, dim), (kappa, other, cosine), eps=1e-4, atol=1e-7, rtol=1e-4
    )


@pytest.mark.parametrize("dim", [2, 3, 128])
def test_opposites_that_cancel_have_a_finite_slope(dim: int) -> None:
    kappa = torch.tensor([5.0], dtype=torch.float64, requires_grad=True)
    cosine = torch.tensor([-1.0], dtype=torch.float64)
    value = log_expected_likelihood(kappa, torch.tensor([5.0]).double(), cosine, dim)
    (slope,) = torch.autograd.grad(value.sum(), kappa)
    assert slope.isfinite().all()


SAMPLED = [(2, 0.4), (2, 30.0), (3, 1.0), (3, 500.0), (16, 8.0), (128, 1.0), (128, 90.0)]


@pytest.mark.parametrize(("dim", "kappa"), SAMPLED)
def test_draws_have_the_distribution_of_the_cores(dim: int, kappa: float) -> None:
    direction = np.full(dim, 1 / np.sqrt(dim))
    drawn = sample_von_mises_fisher(
        torch.from_numpy(direction)[None],
        torch.tensor([kappa], dtype=torch.float64),
        4_000,
        torch.Generator().manual_seed(0),
    )[:, 0]
    np.testing.assert_allclose(drawn.norm(dim=1).numpy(), 1, rtol=1e-12)
    theirs = sphere.sample_von_mises_fisher(direction, kappa, 4_000, np.random.default_rng(0))
    ours = drawn.numpy()
    assert ks_2samp(ours @ direction, theirs @ direction).pvalue > 0.01
    across = np.eye(dim)[0] - direction[0] * direction
    assert ks_2samp(ours @ across, theirs @ across).pvalue > 0.01


@pytest.mark.parametrize(("dim", "kappa"), SAMPLED)
def test_the_gradient_of_the_mean_of_draws_is_that_of_their_mean(dim: int, kappa: float) -> None:
    """E[x] = A(κ) μ: a derivative through draws has the derivative of A without bias."""
    concentration = torch.tensor([kappa], dtype=torch.float64, requires_grad=True)
    direction = torch.zeros(1, dim, dtype=torch.float64)
    direction[0, 0] = 1
    direction.requires_grad_()
    drawn = sample_von_mises_fisher(
        direction, concentration, 20_000, torch.Generator().manual_seed(1)
    )
    along = drawn[:, 0, 0].mean()
    (slope,) = torch.autograd.grad(along, concentration, retain_graph=True)
    expected = sphere.mean_resultant_length_derivative(kappa, dim)
    assert slope.item() == pytest.approx(float(expected), rel=0.05)
    # Turning the mean direction turns the mean: its derivative at right angles is A(κ).
    (turned,) = torch.autograd.grad(drawn[:, 0, 1].mean(), direction)
    length = float(sphere.mean_resultant_length(kappa, dim))
    assert turned[0, 1].item() == pytest.approx(length, rel=0.1, abs=0.02)
