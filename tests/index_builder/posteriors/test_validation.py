from __future__ import annotations

import pytest
import torch

from index_builder.posteriors.laplace.curvature import Curvature
from index_builder.posteriors.laplace.fit import (
    LaplaceFit,
    LaplacePosterior,
    PriorSearch,
    fit_laplace,
)
from index_builder.posteriors.laplace.held_out import norm_correlation, temper_by_validation
from index_builder.posteriors.laplace.last_layer import LastLayerPosterior
from tests.support.narrowing import instance_of, not_none

MARGIN = 1.0


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 4
    centres = torch.randn(4, 7, generator=generator)
    return centres[labels] + torch.randn(60, 7, generator=generator), labels


@pytest.fixture
def fit(data: tuple[torch.Tensor, torch.Tensor]) -> LaplaceFit:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(3, 7, generator=generator)
    return fit_laplace(
        lambda: [data[0]],
        data[1],
        weight,
        torch.zeros(3),
        structure="diagonal",
        margin=MARGIN,
        prior_precision=1.0,
    )


def variance_of(posterior: LaplacePosterior) -> torch.Tensor:
    """The variance of each weight."""
    variance: torch.Tensor = instance_of(LastLayerPosterior, posterior).weight_variance
    return variance


def test_prior_that_validation_chose_is_relative_to_the_mean_curvature(fit: LaplaceFit) -> None:
    search = PriorSearch((1.0, 100.0, 1e4), (0.2, 0.9, 0.3))
    plain, tempered = (one.with_prior(100.0, search) for one in (fit, fit.tempered(7.0)))
    curvature = instance_of(Curvature, fit.curvature)
    assert plain.prior_precision == pytest.approx(100 * fit.data_scale * curvature.mean)
    assert plain.prior_chosen_by == "validation"
    assert plain.prior_search.values == search.values
    torch.testing.assert_close(
        variance_of(plain.posterior),
        1 / (fit.data_scale * curvature.weight + plain.prior_precision),
    )
    torch.testing.assert_close(variance_of(tempered.posterior), 7 * variance_of(plain.posterior))
    assert tempered.temperature == 7.0


def test_no_temperatures_are_refused(fit: LaplaceFit) -> None:
    with pytest.raises(ValueError, match="no candidates"):
        temper_by_validation(fit, [], lambda _: 0.0)


def test_a_temperature_changes_the_spread_of_the_posterior_and_nothing_of_its_shape(
    fit: LaplaceFit,
) -> None:
    wanted = 0.1 * variance_of(fit.posterior)

    def criterion(posterior: LaplacePosterior) -> float:
        return -float((variance_of(posterior) - wanted).abs().sum())

    chosen = temper_by_validation(fit.tempered(7.0), [0.01, 0.1, 1.0], criterion)
    assert chosen.temperature == 0.1
    assert not_none(chosen.temperature_search).candidates == (1.0, 0.1, 0.01)
    assert chosen.prior_precision == fit.prior_precision
    torch.testing.assert_close(variance_of(chosen.posterior), wanted)
    before, after = (instance_of(LastLayerPosterior, one.posterior) for one in (fit, chosen))
    torch.testing.assert_close(after.bias_variance, 0.1 * before.bias_variance)
    assert torch.equal(chosen.posterior.weight_mean, fit.posterior.weight_mean)


def test_of_equally_good_temperatures_the_widest_is_taken(fit: LaplaceFit) -> None:
    def plateau(posterior: LaplacePosterior) -> float:
        return -0.5 if float(variance_of(posterior).max()) < 0.3 * widest else -1.0

    widest = float(variance_of(fit.posterior).max())
    chosen = temper_by_validation(fit, [1e-4, 1e-3, 1e-2, 0.1, 1.0], plateau)
    assert chosen.temperature == 0.1


def test_what_is_all_prior_correlates_with_the_feature_norm(fit: LaplaceFit) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(600, fit.posterior.weight_mean.shape[1], generator=generator) + 0.5
    curvature = fit.curvature * fit.data_scale
    layer = fit.posterior.weight_mean, fit.posterior.bias_mean
    mostly_data, all_prior = (
        not_none(norm_correlation(curvature.posterior(*layer, prior), features))
        for prior in (1e-3, 1e9)
    )
    assert mostly_data < all_prior
    assert all_prior > 0.97  # the bias has no part in the feature norm
    assert norm_correlation(curvature.posterior(*layer, 1.0), features[:1].expand(9, -1)) is None


@pytest.mark.parametrize("slope", [1.0, -1.0, 0.0])
def test_temperature_at_an_end_of_the_range_is_one(fit: LaplaceFit, slope: float) -> None:
    def criterion(posterior: LaplacePosterior) -> float:
        return slope * float(variance_of(posterior).log().mean())

    chosen = temper_by_validation(fit.tempered(7.0), [1e-4, 1e-2, 100.0], criterion)
    assert chosen.temperature == 1
    search = not_none(chosen.temperature_search)
    assert not search.is_identified
    assert search.best in (1e-4, 100.0)
