"""Proxies that are distributions: densities that integrate to 1, and losses by sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import vonmises_fisher
from torch import Tensor

from index_builder.objectives.proxies import (
    ExpectedLikelihoodLoss,
    NonIsotropicProxyLoss,
    RegularisedProxyAnchorLoss,
    SphereProxyLoss,
    non_isotropic_log_density,
)
from index_builder.objectives.von_mises_fisher import log_normaliser
from model_store import sphere
from tests.index_builder.objectives.test_proxies import anchor_by_loops
from tests.support.small_batches import LABELS, LIMITS, embeddings, gradient, unit

DIM, N_LABELS = 5, 4


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(n: int, dim: int, seed: int = 0) -> Tensor:
    return unit(torch.randn(n, dim, generator=draw(seed), dtype=torch.float64))


@pytest.mark.parametrize("dim", [3, 8, 16])
@pytest.mark.parametrize("isotropic", [True, False])
def test_the_non_isotropic_density_integrates_to_one(dim: int, isotropic: bool) -> None:
    """By Monte Carlo over the sphere; the paper's own normaliser is out by 100 and more."""
    points = uniform(200_000, dim)
    direction = uniform(1, dim, seed=1)
    spread = torch.linspace(1.5, 4.0, dim, dtype=torch.float64)
    kappa = torch.full_like(spread, 3.0) if isotropic else spread
    log_area = -sphere.log_normaliser(0.0, dim).item()
    density = non_isotropic_log_density(points, direction, kappa[None])[:, 0]
    weights = (density + log_area).exp()
    error = weights.std().item() / math.sqrt(len(weights))
    assert error < 0.02
    assert weights.mean().item() == pytest.approx(1, abs=4 * error)


@pytest.mark.parametrize("dim", [3, 128, 512])
def test_with_one_concentration_it_is_von_mises_fisher(dim: int) -> None:
    points, direction = uniform(6, dim), uniform(1, dim, seed=1)
    kappa = torch.full((1, dim), 40.0, dtype=torch.float64)
    got = non_isotropic_log_density(points, direction, kappa)[:, 0]
    expected = log_normaliser(torch.tensor(40.0).double(), dim) + 40 * points @ direction[0]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-10)
    if dim == 3:  # where SciPy's normaliser does not underflow
        theirs = vonmises_fisher(direction[0].numpy(), 40).logpdf(points.numpy())
        np.testing.assert_allclose(got.numpy(), theirs, rtol=1e-9)


@pytest.mark.parametrize("overlap", ["el_vmf", "b_vmf", "kl_vmf"])
def test_isotropic_proxies_are_compared_by_the_cores_divergences(overlap: str) -> None:
    objective = SphereProxyLoss(
        DIM,
        N_LABELS,
        overlap=overlap,  # type: ignore[arg-type]
        concentration=9.0,
        temperature=0.7,
        generator=draw(),
    ).double()
    with torch.no_grad():
        objective.log_concentrations.copy_(torch.tensor([0.5, 1.0, 2.0, 3.0]))
    z = embeddings()
    kappa = z.detach().norm(dim=1).numpy()[:, None]
    others = objective.log_concentrations.detach().exp().numpy()
    cosine = (unit(z) @ unit(objective.directions).T).detach().numpy()
    theirs = {
        "el_vmf": sphere.log_expected_likelihood,
        "b_vmf": sphere.log_bhattacharyya_coefficient,
        "kl_vmf": lambda *of: -sphere.kl_divergence(*of),
    }[overlap](kappa, others, cosine, DIM)
    np.testing.assert_allclose(objective.log_likelihoods(z).detach().numpy(), theirs, rtol=1e-9)
    logits = torch.from_numpy(theirs) / 0.7
    expected = -(logits.log_softmax(1)[torch.arange(len(LABELS)), LABELS]).mean()
    assert objective.loss(z, LABELS).item() == pytest.approx(expected.item(), rel=1e-6)
    check_gradients(objective, z)


def check_gradients(objective: Any, z: Tensor) -> None:
    """Gradients by finite differences, of embeddings and of all that is learned."""
    names = list(dict(objective.named_parameters()))
    values = [value.detach().clone().requires_grad_() for value in objective.parameters()]

    def loss(z: Tensor, *values: Tensor) -> Tensor:
        if hasattr(objective, "generator"):
            objective.generator.manual_seed(3)
        given = {f"of.{name}": value for name, value in zip(names, values, strict=True)}
        found: Tensor = torch.func.functional_call(Called(objective), given, (z,))
        return found

    few = z.detach()[:4].clone().requires_grad_()
    assert torch.autograd.gradcheck(loss, (few, *values), eps=1e-5, atol=1e-6, rtol=1e-4)


class Called(torch.nn.Module):
    def __init__(self, of: Any) -> None:
        super().__init__()
        self.of = of

    def forward(self, z: Tensor) -> Tensor:
        found: Tensor = self.of.loss(z, LABELS[: len(z)])
        return found


def test_images_as_points() -> None:
    objective = NonIsotropicProxyLoss(
        DIM, N_LABELS, concentration=3.0, temperature=2.0, generator=draw()
    ).double()
    with torch.no_grad():
        objective.log_concentrations.add_(torch.linspace(-1, 1, DIM))
    z = embeddings()
    terms = []
    for row, label in zip(unit(z), LABELS.tolist(), strict=True):
        log_densities = []
        for mu, kappa in zip(
            unit(objective.directions), objective.log_concentrations.exp(), strict=True
        ):
            k = torch.diag(kappa)
            peak = (k @ mu).norm()
            cosine = (k @ row) @ (k @ mu) / (k @ row).norm() / peak
            jacobian = kappa.log().sum() - DIM * (k @ row).norm().log()
            log_densities.append(log_normaliser(peak, DIM) + peak * cosine + jacobian)
        logits = torch.stack(log_densities) / 2.0
        terms.append(logits.exp().sum().log() - logits[label])
    expected = torch.stack(terms).mean()
    value = objective.loss(z, LABELS)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient(value, z), gradient(expected, z), rtol=1e-6, atol=1e-9)
    check_gradients(objective, z)


def expected_likelihood(n_samples: int, temperature: float = 1.0) -> ExpectedLikelihoodLoss:
    return ExpectedLikelihoodLoss(
        DIM,
        N_LABELS,
        n_samples=n_samples,
        concentration=3.0,
        temperature=temperature,
        generator=draw(),
    ).double()


def test_the_expected_likelihood_of_isotropic_proxies_is_its_closed_form() -> None:
    objective, z = expected_likelihood(20_000), embeddings().detach()[:3] * 3
    got = objective.log_likelihoods(z).detach().numpy()
    cosine = (unit(z) @ unit(objective.directions).T).detach().numpy()
    kappa = z.norm(dim=1).numpy()[:, None]
    closed = sphere.log_expected_likelihood(kappa, 3.0, cosine, DIM)
    np.testing.assert_allclose(got, closed, atol=0.05)


def test_the_temperature_is_outside_of_the_mean_over_draws() -> None:
    z = embeddings()
    logits = expected_likelihood(5).log_likelihoods(z) / 0.25
    value = expected_likelihood(5, 0.25).loss(z, LABELS)
    expected = torch.nn.functional.cross_entropy(logits, LABELS)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    check_gradients(expected_likelihood(2), z)


def test_the_regularised_one_adds_proxy_anchor_with_the_same_proxies() -> None:
    objective = RegularisedProxyAnchorLoss(
        DIM,
        N_LABELS,
        weight=0.5,
        margin=0.1,
        alpha=8.0,
        n_samples=5,
        concentration=3.0,
        temperature=1.0,
        generator=draw(),
    ).double()
    z = embeddings()
    alone = expected_likelihood(5).loss(z, LABELS)
    anchored = anchor_by_loops(z, LABELS, objective.directions, 0.1, 8.0)
    expected = alone + 0.5 * anchored
    assert objective.loss(z, LABELS).item() == pytest.approx(expected.item(), rel=1e-6)
    assert set(objective.learned()) == {"directions", "log_concentrations", "log_temperature"}


@pytest.mark.parametrize("limit", LIMITS)
def test_limits_are_finite(limit: str) -> None:
    labels = LIMITS[limit]
    for z in (embeddings(4), torch.ones(4, DIM, dtype=torch.float64, requires_grad=True)):
        for objective in (
            expected_likelihood(3),
            SphereProxyLoss(
                DIM,
                N_LABELS,
                overlap="el_vmf",
                concentration=50.0,
                temperature=1.0,
                generator=draw(),
            ),
        ):
            value = objective.loss(z, labels)
            assert math.isfinite(value.item())
            assert gradient(value, z).isfinite().all()


def test_one_class_has_nothing_to_tell() -> None:
    objective = NonIsotropicProxyLoss(
        DIM, 1, concentration=5.0, temperature=1.0, generator=draw()
    ).double()
    assert objective.loss(embeddings(4), LIMITS["no negative"]).item() == 0


def test_an_embedding_of_length_zero_is_the_uniform_distribution() -> None:
    z = torch.zeros(2, DIM, dtype=torch.float64, requires_grad=True)
    value = expected_likelihood(4).loss(z, torch.tensor([0, 1]))
    assert math.isfinite(value.item())
    assert gradient(value, z).isfinite().all()
