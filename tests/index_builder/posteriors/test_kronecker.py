from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from index_builder.posteriors.laplace import all_pairs, kronecker
from index_builder.posteriors.laplace.all_pairs import fixed_traces
from index_builder.posteriors.laplace.curvature import Approximation, anchor_targets
from index_builder.posteriors.laplace.fit import (
    fit_laplace,
    log_marginal_likelihood,
    tune_prior_precision,
)
from index_builder.posteriors.laplace.kronecker import KroneckerCurvature, PartialTraces, PriorScale
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from tests.support.narrowing import instance_of

if TYPE_CHECKING:
    from tests.index_builder.posteriors.conftest import Problem

MARGIN = 0.9
DIM, WIDTH = 3, 6

scales = pytest.mark.parametrize("prior_scale", ["features", "isotropic"])


def traces(problem: Problem) -> PartialTraces:
    targets = anchor_targets(problem.labels, "per_anchor", torch.float64)
    return fixed_traces(problem.layer, targets, split="euclidean", margin=MARGIN) * 11


def covariance(posterior: KroneckerPosterior) -> Tensor:
    """Dense covariance of W̃, outputs first, from the attributes."""
    u, scale = posterior.directions, torch.diag(posterior.feature_scale)
    of_features = u @ torch.diag(posterior.direction_variance) @ u.T
    of_features += posterior.rest_variance * (torch.eye(len(u)) - u @ u.T)
    return torch.kron(
        posterior.output_factor @ posterior.output_factor.T, scale @ of_features @ scale
    )


@scales
@pytest.mark.parametrize("prior_precision", [1e-3, 0.2, 30.0])
def test_its_precision_has_the_partial_traces_of_the_exact_one(
    problem: Problem,
    monkeypatch: pytest.MonkeyPatch,
    prior_scale: PriorScale,
    prior_precision: float,
) -> None:
    monkeypatch.setattr(kronecker, "_LOST", 0.0)
    kept = traces(problem)
    curvature = kept.rectified(prior_scale)
    posterior = curvature.posterior(problem.weight, problem.bias, prior_precision)
    precision = torch.linalg.inv(covariance(posterior)).view(DIM, WIDTH, DIM, WIDTH)
    units = curvature.scale  # t^-½: in its units the prior is isotropic
    scaled = torch.einsum("f,dfeg,g->dfeg", units, precision, units)
    exact = units[:, None] * kept.features * units + DIM * prior_precision * torch.eye(WIDTH)
    torch.testing.assert_close(torch.einsum("dfdg->fg", scaled), exact)
    if prior_scale == "isotropic":
        exact = kept.outputs + WIDTH * prior_precision * torch.eye(DIM)
        torch.testing.assert_close(torch.einsum("dfef->de", scaled), exact)


def test_it_is_near_the_exact_posterior_of_the_dense_curvature(
    dense_oracle: Callable[..., Tensor], problem: Problem
) -> None:
    # Directions all over the sphere, so that what an image's own direction keeps averages out.
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(40) % 8
    features = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    weight = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    spread = replace(
        problem, features=features, labels=labels, weight=weight, bias=torch.zeros(4).double()
    )
    i, j, same, inside = spread.all_pairs(MARGIN)
    y = anchor_targets(labels, "per_anchor", torch.float64).of_pairs(i, same, inside)
    dense = 40 * dense_oracle(spread, i, j, y, "fixed", "euclidean", anchored=True)
    exact = torch.linalg.inv(dense + 0.5 * torch.eye(len(dense)))
    posterior = fit_laplace(
        spread.blocks,
        labels,
        weight,
        spread.bias,
        margin=MARGIN,
        prior_precision=0.5,
        prior_scale="isotropic",
    ).posterior
    asked = torch.randn(50, 5, generator=generator, dtype=torch.float64)
    rows = functional.pad(asked, (0, 1), value=1.0)
    wanted = torch.einsum("nf,dfdg,ng->nd", rows, exact.view(4, 6, 4, 6), rows)
    ratio = posterior.predict(asked)[1].sum(1) / wanted.sum(1)
    assert float(ratio.min()) > 0.6
    assert float(ratio.max()) < 1.05
    assert float(torch.corrcoef(torch.stack([ratio * wanted.sum(1), wanted.sum(1)]))[0, 1]) > 0.95
    # The same by the diagonal of the curvature is further off.
    diagonal = (rows.square() @ (1 / (dense.diagonal().view(4, 6) + 0.5)).T).sum(1) / wanted.sum(1)
    assert float(diagonal.log().abs().mean()) > float(ratio.log().abs().mean())


def test_one_image_determines_its_own_features_and_no_others() -> None:
    phi = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    weight = torch.eye(2, dtype=torch.float64)
    kept = PartialTraces(
        2 * torch.outer(seen := functional.pad(phi[0], (0, 1), value=1.0), seen),
        26 * torch.diag(torch.tensor([2.0, 0.0])).double(),
        2 * seen.square(),
    )
    posterior = kept.rectified("isotropic").posterior(weight, torch.zeros(2).double(), 0.5)
    asked = torch.tensor([[3.0, 4.0], [4.0, -3.25]], dtype=torch.float64)  # (4, -3.25, 1) ⟂ seen
    expected = torch.tensor([26 / (26 + 0.5), (16 + 3.25**2 + 1) / 0.5], dtype=torch.float64)
    torch.testing.assert_close(posterior.feature_variance(asked), expected)
    variance = posterior.predict(asked)[1]
    assert float(variance[0, 1]) > 10 * float(variance[0, 0])  # no data on the second output


def test_a_strong_prior_leaves_the_feature_norm(problem: Problem) -> None:
    posterior = traces(problem).rectified("isotropic").posterior(problem.weight, problem.bias, 1e9)
    _, variance = posterior.predict(problem.features)
    expected = (problem.features.square().sum(1) + 1) / 1e9
    torch.testing.assert_close(variance, expected[:, None].expand(-1, DIM), rtol=1e-6, atol=0)


def test_a_prior_in_units_of_the_features_does_not_depend_on_these_units(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kronecker, "_LOST", 0.0)
    monkeypatch.setattr(kronecker, "_SCALE_POWER", 1.0)
    generator = torch.Generator().manual_seed(8)
    drawn = torch.randn(11, 5, generator=generator, dtype=torch.float64)
    features = drawn + drawn.sign()
    problem = replace(problem, features=features)
    units = torch.tensor([1.5, 0.6, 1.2, 1.0, 0.8], dtype=torch.float64)
    other = replace(problem, features=problem.features * units, weight=problem.weight / units)
    variances = []
    for one in (problem, other):
        curvature = traces(one).rectified("features")
        diagonal = traces(one).diagonal
        assert float(diagonal.min() / diagonal.mean()) > 0.01  # none at the floor
        posterior = curvature.posterior(one.weight, one.bias, curvature.mean)
        variances.append(posterior.feature_variance(one.features + 0.3 * one.features.mean(0)))
    torch.testing.assert_close(variances[0], variances[1])


def test_negatives_outside_the_margin_count_nothing(problem: Problem) -> None:
    layer = (problem.blocks, problem.labels, problem.weight, problem.bias)
    near = fit_laplace(*layer, margin=1e-6, prior_precision=1.0).posterior
    alone = torch.unique(problem.labels, return_counts=True)[1]
    size = alone[torch.unique(problem.labels, return_inverse=True)[1]]
    targets = torch.where(size > 1, 2 / (size > 1).sum(), 0.0)
    h = problem.embeddings
    rows = functional.pad(problem.features, (0, 1), value=1.0) / h.norm(dim=1, keepdim=True)
    a = 11 * (DIM - 1) / DIM * (rows * targets[:, None]).T @ rows
    scale = torch.diag((a.diagonal() / a.diagonal().mean()).clamp_min(0.01) ** -0.4)
    inverse = scale @ torch.linalg.inv(scale @ a @ scale + torch.eye(WIDTH)) @ scale
    asked = functional.pad(problem.features, (0, 1), value=1.0)
    expected = ((asked @ inverse) * asked).sum(1)
    found = instance_of(KroneckerPosterior, near).feature_variance(problem.features)
    torch.testing.assert_close(found, expected)


def curvature_of(values: list[float], n_features: int, rest: float = 0.0) -> KroneckerCurvature:
    generator = torch.Generator().manual_seed(1)
    square = torch.randn(n_features + 1, n_features + 1, generator=generator, dtype=torch.float64)
    outputs = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    return KroneckerCurvature(
        scale=torch.rand(n_features + 1, generator=generator, dtype=torch.float64) + 0.5,
        directions=torch.linalg.qr(square)[0][:, : len(values)],
        values=torch.tensor(values, dtype=torch.float64),
        rest=rest,
        output_directions=torch.linalg.qr(outputs)[0],
        output_values=torch.tensor([0.1, 1.0, 2.5], dtype=torch.float64),
    )


@pytest.mark.parametrize("rest", [0.0, 0.4])
def test_what_is_left_out_of_the_basis_changes_no_variance_by_more_than_a_hundredth(
    rest: float,
) -> None:
    values = [50.0, 20.0, 3.0] + [0.4 + 0.0005 * k for k in range(20, 0, -1)]
    curvature = curvature_of(values, 40, rest)
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(DIM, 40, generator=generator, dtype=torch.float64)
    short = curvature.posterior(weight, weight[:, 0], 1.0)
    assert short.directions.shape[1] == (3 if rest else len(values))
    whole = torch.cat([curvature.values, torch.full((41 - len(values),), rest).double()])
    every = torch.linalg.qr(
        torch.cat([curvature.directions, torch.randn(41, 41, generator=generator).double()], 1)
    )[0][:, :41]
    asked = torch.randn(300, 40, generator=generator, dtype=torch.float64)
    rows = functional.pad(asked, (0, 1), value=1.0) * curvature.scale
    exact = (rows @ every).square() @ (1 / (whole + 1.0))
    assert float((short.feature_variance(asked) / exact - 1).abs().max()) < 0.01


@pytest.mark.parametrize("prior_precision", [0.02, 1.0, 40.0])
def test_determinant_and_evidence_are_those_of_the_dense_matrix(prior_precision: float) -> None:
    curvature = curvature_of([30.0, 4.0, 0.2], 4, rest=0.1)
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(DIM, 4, generator=generator, dtype=torch.float64)
    bias = torch.randn(DIM, generator=generator, dtype=torch.float64)
    precision = torch.linalg.inv(covariance(curvature.posterior(weight, bias, prior_precision)))
    prior = prior_precision * torch.kron(
        torch.eye(DIM).double(), torch.diag(curvature.scale.reciprocal().square())
    )
    determinant = torch.logdet(precision) - torch.logdet(prior)
    assert curvature.log_determinant(prior_precision) == pytest.approx(float(determinant), rel=0.02)
    layer = torch.cat([weight, bias[:, None]], 1).flatten()
    evidence = -0.5 * (layer @ prior @ layer + curvature.log_determinant(prior_precision))
    value = log_marginal_likelihood(curvature, weight, bias, prior_precision)
    assert value == pytest.approx(float(evidence))
    step = 1e-5
    lower, upper = (
        curvature.log_determinant(prior_precision * math.exp(sign * step)) for sign in (-1, 1)
    )
    slope = (upper - lower) / (2 * step)
    assert curvature.n_determined(prior_precision) == pytest.approx(-slope, rel=1e-6)


def test_tuning_finds_the_largest_evidence() -> None:
    curvature = curvature_of([300.0, 40.0, 5.0], 4, rest=0.1)
    weight = torch.full((DIM, 4), 0.4, dtype=torch.float64)
    tuned = tune_prior_precision(curvature, weight, weight[:, 0])
    best = log_marginal_likelihood(curvature, weight, weight[:, 0], tuned)
    for factor in (0.1, 0.9, 1.1, 10.0):
        assert best > log_marginal_likelihood(curvature, weight, weight[:, 0], factor * tuned)


def test_no_curvature_is_in_double_precision_where_the_layer_is() -> None:
    for basis in (None, torch.empty(4, 2, device="meta")):
        nothing = PartialTraces.zeros_like(torch.empty(2, 3, device="meta"), basis)
        for name in ("features", "outputs", "diagonal"):
            tensor = getattr(nothing, name)
            assert (tensor.dtype, tensor.device.type) == (torch.float64, "meta")


def test_a_basis_without_directions_leaves_all_to_the_rest() -> None:
    basis = torch.empty(4, 0, dtype=torch.float64)
    nothing = PartialTraces.zeros_like(torch.zeros(2, 3), basis)
    curvature = replace(nothing, diagonal=torch.ones(4).double()).rectified("isotropic")
    assert (len(curvature.values), curvature.rest) == (0, 0.5)


def test_indefinite_curvature_is_cut_off_once_it_is_summed() -> None:
    one = PartialTraces(
        torch.diag(torch.tensor([4.0, -2.0])).double(),
        torch.diag(torch.tensor([3.0, -1.0])).double(),
        torch.tensor([4.0, -2.0], dtype=torch.float64),
    )
    assert one.rectified("isotropic").values.tolist() == [2.0, 0.0]
    other = (
        one
        + one * 0.5
        + PartialTraces(
            torch.diag(torch.tensor([0.0, 5.0])).double(),
            torch.diag(torch.tensor([0.0, 5.0])).double(),
            torch.tensor([0.0, 5.0], dtype=torch.float64),
        )
    )
    curvature = other.rectified("isotropic")
    assert curvature.values.tolist() == [3.0, 1.0]
    assert sorted(curvature.output_values.tolist()) == [3.5, 4.5]
    assert curvature.share_zero == 0
    assert (curvature.mean, curvature.largest) == (2.0, 3.0)
    assert curvature.prior_share(6.0) == 0.75


@pytest.mark.parametrize(("diagonal", "rest"), [((1.0, 0.4, 0.2), 0.15), ((0.5, 0.0, 0.0), 0.0)])
def test_what_the_basis_leaves_out_is_spread_and_never_below_zero(
    diagonal: tuple[float, ...], rest: float
) -> None:
    sums = PartialTraces(
        torch.ones(1, 1).double(),
        torch.eye(2).double(),
        torch.tensor(diagonal, dtype=torch.float64),
        torch.eye(3)[:, :1].double(),
    )
    assert sums.rectified("isotropic").rest == pytest.approx(rest)


def test_an_eigenvalue_just_above_the_rounding_of_the_largest_is_none_of_its_noise() -> None:
    eps = torch.finfo(torch.float64).eps
    for factor, kept in ((2.0, False), (2.000001, True), (-1.0, False)):
        values = torch.tensor([1.0, factor * eps], dtype=torch.float64)
        assert kronecker._without_noise(values).tolist() == [1.0, factor * eps * kept]


@pytest.mark.parametrize(("values", "kept"), [((9, 9, 1, 1), 2), ((9, 9, 9, 1), 4)])
def test_from_more_than_half_of_the_directions_on_all_are_kept(
    values: tuple[int, ...], kept: int
) -> None:
    """Three of four are needed for the second."""
    its: Any = SimpleNamespace(values=torch.tensor(values, dtype=torch.float64), n_left=0, rest=0)
    assert KroneckerCurvature._kept(its, 0.0) == kept


@pytest.mark.parametrize(("rest", "share"), [(0.0, 0.75), (0.1, 0.25)])
def test_the_share_without_curvature_counts_what_is_left_out(rest: float, share: float) -> None:
    one = torch.ones(1)
    of = KroneckerCurvature(
        torch.ones(4), torch.eye(4)[:, :2], torch.tensor([1.0, 0.0]), rest, one[None], one
    )
    assert of.share_zero == share


@pytest.mark.parametrize("approximation", ["fixed", "positives"])
def test_of_many_features_a_fit_keeps_the_main_directions_alone(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, approximation: Approximation
) -> None:
    monkeypatch.setattr(all_pairs, "MAX_DENSE", 0)
    monkeypatch.setattr(all_pairs, "MAX_RANK", 3)
    layer = (problem.blocks, problem.labels, problem.weight, problem.bias)
    fitted = fit_laplace(*layer, approximation=approximation, margin=MARGIN)
    assert len(instance_of(KroneckerCurvature, fitted.curvature).values) == 3
