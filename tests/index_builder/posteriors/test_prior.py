from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal

from index_builder.posteriors.laplace.curvature import Curvature
from index_builder.posteriors.laplace.fit import (
    PriorSearch,
    evidence_curve,
    log_marginal_likelihood,
    relative_prior_precision,
    tune_prior_precision,
)
from model_store.errors import CalibrationError


@pytest.fixture
def layer() -> tuple[Curvature, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(8)
    curvature = Curvature(
        torch.rand(3, 5, generator=generator, dtype=torch.float64) ** 4 * 100,
        torch.rand(3, generator=generator, dtype=torch.float64),
    )
    curvature.weight[0, 2] = 0
    weight = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    return curvature, weight, torch.randn(3, generator=generator, dtype=torch.float64)


def test_evidence_of_a_gaussian_model_is_exact() -> None:
    # One observation x_k ~ N(θ_k, 1 / H_k) of each weight θ_k ~ N(0, 1 / λ): the Laplace evidence
    # at the MAP is the true one, up to the data term -½ Σ H (x - θ)² and the likelihood's constant.
    rng = np.random.default_rng(4)
    h, x, prior_precision = rng.random(6) * 10 + 0.1, rng.normal(size=6), 0.7
    map_estimate = h * x / (h + prior_precision)
    evidence = log_marginal_likelihood(
        Curvature(torch.tensor(h[:4]).view(2, 2), torch.tensor(h[4:])),
        torch.tensor(map_estimate[:4]).view(2, 2),
        torch.tensor(map_estimate[4:]),
        prior_precision,
    )
    data_term = -0.5 * (h * (x - map_estimate) ** 2).sum() + 0.5 * np.log(h / (2 * math.pi)).sum()
    truth = multivariate_normal(np.zeros(6), np.diag(1 / h + 1 / prior_precision)).logpdf(x)
    assert evidence + data_term == pytest.approx(truth, rel=1e-12)


def test_tuned_prior_precision_has_the_largest_evidence(
    layer: tuple[Curvature, torch.Tensor, torch.Tensor],
) -> None:
    best = minimize_scalar(
        lambda log_precision: -log_marginal_likelihood(*layer, math.exp(log_precision)),
        bounds=(-20, 20),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert tune_prior_precision(*layer) == pytest.approx(math.exp(best.x), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e12])
def test_tuning_finds_the_root_at_any_scale(
    layer: tuple[Curvature, torch.Tensor, torch.Tensor], scale: float
) -> None:
    curvature, weight, bias = layer[0] * scale, layer[1], layer[2]
    tuned = tune_prior_precision(curvature, weight, bias)
    h = torch.cat([curvature.weight.flatten(), curvature.bias])
    determined = float((h / (h + tuned)).sum())
    squared_norm = float(weight.square().sum() + bias.square().sum())
    assert tuned * squared_norm == pytest.approx(determined, rel=1e-9)


def test_curve_has_its_maximum_where_tuning_found_it(
    layer: tuple[Curvature, torch.Tensor, torch.Tensor],
) -> None:
    tuned = tune_prior_precision(*layer)
    curve = evidence_curve(*layer, tuned)
    assert curve.candidates[int(np.argmax(curve.values))] == pytest.approx(tuned)
    assert curve.candidates[0] == pytest.approx(tuned * 1e-4)
    assert curve.values[3] == log_marginal_likelihood(*layer, curve.candidates[3])


@pytest.mark.parametrize("curvature", [0.0, 1.0])
def test_no_curvature_or_no_weight_leaves_no_prior_to_prefer(curvature: float) -> None:
    weight = torch.full((2, 3), 1 - curvature)
    with pytest.raises(CalibrationError, match="zero everywhere"):
        tune_prior_precision(
            Curvature(torch.full((2, 3), curvature), torch.full((2,), curvature)),
            weight,
            weight[:, 0],
        )


def test_a_relative_prior_is_a_fraction_of_the_mean_curvature() -> None:
    curvature = Curvature(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([0.0, 0.0]))
    assert relative_prior_precision(curvature, 0.5) == pytest.approx(1.0)
    with pytest.raises(CalibrationError, match="zero everywhere"):
        relative_prior_precision(curvature * 0.0, 0.5)


def test_of_equally_good_priors_the_first_is_the_best() -> None:
    assert PriorSearch((3.0, 2.0, 1.0), (0.1, 0.7, 0.7)).best == 2


def test_a_curve_has_two_values_a_decade(
    layer: tuple[Curvature, torch.Tensor, torch.Tensor],
) -> None:
    candidates = np.array(evidence_curve(*layer, 3.0).candidates)
    np.testing.assert_allclose(candidates[1:] / candidates[:-1], math.sqrt(10))
    assert candidates[len(candidates) // 2] == pytest.approx(3.0)
