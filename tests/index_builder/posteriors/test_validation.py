from __future__ import annotations

import pytest
import torch
from sklearn.metrics import roc_auc_score

from index_builder.posteriors import (
    Curvature,
    LaplaceFit,
    LastLayerPosterior,
    fit_laplace,
    nearest_neighbour_criterion,
    select_by_validation,
    temper_by_validation,
)
from index_builder.posteriors.laplace.fit import LaplacePosterior
from index_builder.posteriors.laplace.validation import norm_correlation
from model_store.errors import CalibrationError
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
    return instance_of(LastLayerPosterior, posterior).weight_variance


def test_the_candidate_of_the_largest_criterion_is_taken(fit: LaplaceFit) -> None:
    def criterion(posterior: LaplacePosterior) -> float:
        # Largest where the prior's share in the largest variance is a hundredth.
        return -abs(float(variance_of(posterior).max()) - 0.01)

    chosen = select_by_validation(fit, [1.0, 100.0, 1e4], criterion)
    assert chosen.prior_chosen_by == "validation"
    assert chosen.prior_search.candidates == (1.0, 100.0, 1e4)
    values = chosen.prior_search.values
    assert chosen.prior_precision == (1.0, 100.0, 1e4)[values.index(max(values))]
    curvature = instance_of(Curvature, fit.curvature)
    torch.testing.assert_close(
        variance_of(chosen.posterior),
        1 / (fit.data_scale * curvature.weight + chosen.prior_precision),
    )
    assert criterion(chosen.posterior) == max(values)
    assert torch.equal(instance_of(Curvature, chosen.curvature).weight, curvature.weight)


def test_another_prior_leaves_the_temperature(fit: LaplaceFit) -> None:
    plain, tempered = (
        select_by_validation(one, [3.0], lambda _: 0.0) for one in (fit, fit.tempered(7.0))
    )
    torch.testing.assert_close(variance_of(tempered.posterior), 7 * variance_of(plain.posterior))
    assert tempered.temperature == 7.0


def test_no_candidates_are_refused(fit: LaplaceFit) -> None:
    for choose in (select_by_validation, temper_by_validation):
        with pytest.raises(ValueError, match="no candidates"):
            choose(fit, [], lambda _: 0.0)


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


def test_criterion_is_the_auroc_of_wrong_nearest_neighbours(
    fit: LaplaceFit, data: tuple[torch.Tensor, torch.Tensor]
) -> None:
    features, labels = data
    queries, query_labels, gallery, gallery_labels = (
        features[:25],
        labels[:25],
        features[25:],
        labels[25:],
    )
    criterion = nearest_neighbour_criterion(
        fit.posterior, queries, query_labels, gallery, gallery_labels
    )
    weights, biases = fit.posterior.sample(4000, torch.Generator().manual_seed(2))
    embeddings = torch.einsum("sdf,bf->sbd", weights, queries) + biases[:, None]
    wrong, exact = [], []
    for row in range(25):
        cosines = torch.cosine_similarity(
            fit.posterior.weight_mean @ queries[row], gallery @ fit.posterior.weight_mean.T, -1
        )
        wrong.append(int(gallery_labels[cosines.argmax()] != query_labels[row]))
        second_moment = embeddings[:, row].square().sum(1).mean()
        exact.append(-float(embeddings[:, row].mean(0).norm() / second_moment.sqrt()))
    assert criterion(fit.posterior) == pytest.approx(roc_auc_score(wrong, exact), abs=0.05)


def test_neighbours_that_are_all_right_say_nothing(
    fit: LaplaceFit, data: tuple[torch.Tensor, torch.Tensor]
) -> None:
    features, labels = data
    with pytest.raises(CalibrationError, match="0 of 60 nearest neighbours are wrong"):
        nearest_neighbour_criterion(fit.posterior, features, labels, features, labels)


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
