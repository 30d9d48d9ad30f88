"""Priors and temperatures by held-out labels and images, on made-up features."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from index_builder.posteriors.laplace.curvature import Curvature
from index_builder.posteriors.laplace.fit import LaplaceFit, fit_laplace
from index_builder.posteriors.laplace.held_out import (
    LEAST_GAIN,
    N_FOLDS,
    N_IMAGES,
    N_NEIGHBOURS,
    FitFold,
    Fold,
    correlated_pairs,
    fit_correlation,
    folds_of,
    pair_std,
    some_of_each,
    total_variances,
    validate,
)
from index_builder.posteriors.laplace.kronecker_posterior import KroneckerPosterior
from model_store.predictive import Pairs
from model_store.sphere import unit_direction
from tests.support.narrowing import instance_of, not_none

N_FEATURES, DIM, N_LABELS, N_EACH = 40, 12, 12, 8


Floats = NDArray[np.float32]


def features_of(noise: float) -> tuple[Floats, np.ndarray[Any, Any]]:
    """Features of labels around random centres, and their codes."""
    generator = np.random.default_rng(0)
    labels = np.arange(N_LABELS * N_EACH) % N_LABELS
    centres = generator.standard_normal((N_LABELS, N_FEATURES), dtype=np.float32)
    spread = noise * generator.standard_normal((len(labels), N_FEATURES), dtype=np.float32)
    return (centres[labels] + spread).astype(np.float32), labels


def fitter(features: Floats, labels: np.ndarray[Any, Any], structure: Any) -> FitFold:
    generator = np.random.default_rng(1)
    weight = generator.standard_normal((DIM, N_FEATURES), dtype=np.float32)
    bias = np.zeros(DIM, dtype=np.float32)

    def fit(rows: np.ndarray[Any, Any]) -> tuple[LaplaceFit, Floats, Floats]:
        some = features[rows]
        codes = np.unique(labels[rows], return_inverse=True)[1]
        fitted = fit_laplace(lambda: [some], codes, weight, bias, structure=structure, margin=0.5)
        return fitted, weight, bias

    return fit


def all_folds(labels: np.ndarray[Any, Any], **given: Any) -> list[Fold]:
    return list(folds_of(labels, given.pop("may_ask", np.ones(len(labels), bool)), 0, **given))


def test_folds_leave_labels_and_images_out_of_their_galleries() -> None:
    labels = features_of(1.0)[1]
    folds = all_folds(labels, divided=True)
    assert len(folds) == N_FOLDS
    for fold in folds:
        held = set(labels[fold.gallery].tolist())
        assert held == set(labels[fold.known].tolist())
        assert held.isdisjoint(labels[fold.absent].tolist())
        assert set(fold.gallery.tolist()).isdisjoint(fold.known.tolist())
    assert sorted(np.concatenate([fold.absent for fold in folds]).tolist()) == list(range(96))


def test_folds_of_images_that_were_not_learned_ask_all_of_them() -> None:
    labels = features_of(1.0)[1]
    is_new = np.arange(len(labels)) >= 72
    for fold in all_folds(labels, divided=False, may_ask=is_new):
        assert not is_new[fold.gallery].any()
        assert is_new[fold.known].all()
        assert is_new[fold.absent].all()
        assert len(fold.known) + len(fold.absent) == is_new.sum()


def test_folds_of_few_labels_leave_none_out() -> None:
    labels = np.arange(30) % 3
    for fold in all_folds(labels, divided=True):
        assert not len(fold.absent)
        assert set(labels[fold.gallery].tolist()) == {0, 1, 2}


def test_images_for_folds_are_of_the_same_labels_in_any_part() -> None:
    many, few = np.arange(9000) % 900, np.arange(1800) % 900
    found = [set(labels[some_of_each(labels, 900, 3)].tolist()) for labels in (many, few)]
    assert found[0] <= found[1]
    assert len(some_of_each(many, 900, 3)) == N_IMAGES
    large = some_of_each(np.arange(50_000) % 10, 10, 3)
    np.testing.assert_array_equal(np.bincount(large % 10), np.full(10, N_IMAGES // 10))


def test_pair_std_equals_that_of_the_search() -> None:
    generator = np.random.default_rng(0)
    of_queries, of_items = (generator.standard_normal((5, DIM), dtype=np.float32) for _ in range(2))
    queries = unit_direction(of_queries)
    items = unit_direction(of_items + of_queries)
    variances = generator.random((5, DIM), dtype=np.float32)
    totals = generator.random(5, dtype=np.float32)
    similarities = (queries * items).sum(1)
    found = pair_std(queries, variances, items, totals, similarities)
    for row in range(5):
        query: Any = SimpleNamespace(variance=variances[row], direction=queries[row])
        similarity = similarities[row : row + 1].astype(np.float64)
        pair = Pairs.of(
            query,
            items[row : row + 1],
            similarity,
            totals[row : row + 1],
            np.clip(similarity, 0, 1),
        )
        assert float(found[row]) == pytest.approx(pair.first_order[0], rel=1e-4)


@pytest.mark.parametrize("structure", ["kronecker", "diagonal"])
def test_validation_tells_wrong_and_absent_queries(structure: Any) -> None:
    features, labels = features_of(1.2)
    fit = fitter(features, labels, structure)
    may_ask = np.ones(len(labels), dtype=bool)
    found = not_none(validate(features, labels, may_ask, fit, (3.0, 30.0), 0, divided=True))
    assert found.n_wrong > 0
    assert found.n_absent == len(labels)
    assert not_none(found.wrong_auroc) > 0.6
    assert not_none(found.absent_auroc) > 0.6
    chosen = found.prior.values[found.prior.candidates.index(found.fraction)]
    assert chosen == pytest.approx(not_none(found.wrong_auroc) + not_none(found.absent_auroc))
    assert chosen >= max(found.prior.values) - LEAST_GAIN


def test_harder_queries_get_a_higher_temperature() -> None:
    temperatures = []
    for noise in (0.7, 1.4):
        features, labels = features_of(noise)
        may_ask = np.ones(len(labels), dtype=bool)
        fit = fitter(features, labels, "kronecker")
        found = not_none(validate(features, labels, may_ask, fit, (3.0,), 0, divided=True))
        assert found.temperature.is_identified
        # In units of the spread that the search begins with.
        temperatures.append(found.temperature.best / max(found.temperature.candidates))
    assert temperatures[0] < temperatures[1]


def test_pairs_of_held_out_queries_move_together_the_more_alike_they_are() -> None:
    features, labels = features_of(0.7)
    may_ask = np.ones(len(labels), dtype=bool)
    for structure in ("kronecker", "diagonal"):
        fit = fitter(features, labels, structure)
        found = not_none(validate(features, labels, may_ask, fit, (3.0,), 0, divided=True))
        if structure == "diagonal":
            assert found.pair_correlation is None
        else:
            correlation = not_none(found.pair_correlation)
            # Of typical variances; items less alike move together less.
            r = correlation.of(np.array([0.5, 0.9]), 1.0, np.ones(2))
            assert 0 <= r[0] < r[1]


def test_pairs_move_together_as_sampled_layers_move_them() -> None:
    features, labels = features_of(0.7)
    n_queries = 30
    fit, weight, bias = fitter(features, labels, "kronecker")(np.arange(len(labels)))
    posterior = instance_of(KroneckerPosterior, fit.posterior)
    tensors = {
        field.name: torch.from_numpy(getattr(posterior, field.name))
        for field in fields(posterior)
        if field.init
    }
    drawn = replace(posterior, **tensors).sample(4000, torch.Generator().manual_seed(0))
    errors = [np.asarray(one) - mean for one, mean in zip(drawn, (weight, bias), strict=True)]
    moved = np.einsum("sdf,nf->nsd", errors[0], features) + errors[1]
    moved = moved.reshape(len(features), -1)
    correlations = np.corrcoef(moved)
    mean = features @ weight.T + bias
    directions = unit_direction(mean)
    totals = posterior.predict(features)[1].sum(axis=1) / (mean**2).sum(axis=1)
    pairs = [
        (query, item)
        for query in range(n_queries)
        for item in sorted(
            range(n_queries, len(features)),
            key=lambda item: -float(directions[query] @ directions[item]),
        )[:N_NEIGHBOURS]
    ]
    queries, items = np.array(pairs).T
    similarities = (directions[queries] * directions[items]).sum(axis=1)
    products = similarities / np.sqrt(totals[queries] * totals[items])
    r = correlations[queries, items]
    known = np.stack([np.ones(len(r)), similarities, products], axis=1)
    wanted = known @ np.linalg.lstsq(known, r, rcond=None)[0]

    found = fit_correlation(
        correlated_pairs(posterior, features[:n_queries], features[n_queries:])
    ).in_units_of(float(np.median(totals[n_queries:])))
    fitted = [
        found.of(similarities[place, None], float(totals[query]), totals[item, None])[0]
        for place, (query, item) in enumerate(pairs)
    ]
    np.testing.assert_allclose(fitted, np.clip(wanted, 0, 1), atol=0.03)
    assert np.corrcoef(fitted, r)[0, 1] > 0.5


def test_correlation_of_pairs_does_not_depend_on_the_temperature() -> None:
    features, labels = features_of(0.7)
    fit, _, _ = fitter(features, labels, "kronecker")(np.arange(len(labels)))
    posterior = instance_of(KroneckerPosterior, fit.posterior)
    one, other = (
        fit_correlation(correlated_pairs(of, features[:30], features[30:]))
        for of in (posterior, posterior.tempered(9.0))
    )
    np.testing.assert_allclose(one, other, rtol=1e-4)
    np.testing.assert_allclose(
        total_variances(posterior.tempered(9.0), features),
        9 * total_variances(posterior, features),
        rtol=1e-5,
    )


def test_too_few_queries_choose_nothing() -> None:
    features, labels = features_of(1.0)
    few = np.arange(len(labels)) < 10
    fit = fitter(features, labels, "kronecker")
    assert validate(features, labels, few, fit, (3.0,), 0, divided=True) is None


def test_variances_of_several_priors_are_those_of_their_posteriors() -> None:
    features, labels = features_of(1.0)
    fit, weight, bias = fitter(features, labels, "kronecker")(np.arange(80))
    assert not isinstance(fit.curvature, Curvature)
    curvature = fit.curvature * fit.data_scale
    priors = [fraction * curvature.mean for fraction in (0.3, 30.0)]
    for prior, found in zip(priors, curvature.predictive_variances(features, priors), strict=True):
        wanted = curvature.posterior(weight, bias, prior).predict(features)[1]
        np.testing.assert_allclose(found, wanted, rtol=0.02)
