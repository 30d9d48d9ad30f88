from __future__ import annotations

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression

from index_builder.calibration import fit_venn_abers
from model_store.decision import VennAbers

RNG = np.random.default_rng(0)


def by_definition(scores: np.ndarray, outcomes: np.ndarray, score: float) -> list[float]:
    """The isotonic regression with (score, 0) and with (score, 1) added, at the score."""
    return [
        float(
            IsotonicRegression()
            .fit(np.r_[scores, score], np.r_[outcomes, added])
            .predict([score])[0]
        )
        for added in (0, 1)
    ]


def test_it_is_the_inductive_venn_abers_predictor() -> None:
    scores = RNG.standard_normal(120).round(1)  # with ties
    outcomes = RNG.uniform(size=120) < 1 / (1 + np.exp(-2 * scores))
    fitted = fit_venn_abers(scores, outcomes, np.ones(120))
    for score in np.unique(scores):
        got = fitted(np.array([score]))[0]
        np.testing.assert_allclose(got, by_definition(scores, outcomes, score), atol=1e-12)


def test_between_its_rows_it_is_an_outer_bound() -> None:
    scores, outcomes = RNG.standard_normal(200), RNG.uniform(size=200) < 0.5
    fitted = fit_venn_abers(scores, outcomes, np.ones(200))
    asked = np.r_[-9.0, RNG.standard_normal(50), 9.0]
    for score, (lower, upper) in zip(asked, fitted(asked), strict=True):
        exact = by_definition(scores, outcomes, score)
        assert lower <= exact[0] + 1e-12
        assert upper >= exact[1] - 1e-12


def test_a_weight_counts_as_so_many_examples() -> None:
    scores, outcomes = RNG.standard_normal(40), RNG.uniform(size=40) < 0.6
    weights = RNG.integers(1, 4, 40)
    one = fit_venn_abers(scores, outcomes, weights.astype(float))
    copies = np.repeat(scores, weights), np.repeat(outcomes, weights)
    other = fit_venn_abers(*copies, np.ones(len(copies[0])))
    np.testing.assert_allclose(one.lower, other.lower)
    np.testing.assert_allclose(one.upper, other.upper)


@pytest.mark.parametrize("n", [30, 3000])
def test_the_interval_holds_the_truth_on_average_and_narrows(n: int) -> None:
    scores = RNG.standard_normal(n)
    outcomes = RNG.uniform(size=n) < 1 / (1 + np.exp(-scores))
    fitted = fit_venn_abers(scores, outcomes, np.ones(n))
    new = RNG.standard_normal(20_000)
    happened = RNG.uniform(size=20_000) < 1 / (1 + np.exp(-new))
    lower, upper = fitted(new).T
    assert lower.mean() - 0.05 < happened.mean() < upper.mean() + 0.05
    assert (upper - lower).mean() < (0.6 if n == 30 else 0.08)
    assert len(fitted.log_odds) <= 400


def test_without_a_row_on_a_side_the_bound_is_trivial() -> None:
    fitted = VennAbers(np.array([0.0]), np.array([0.4]), np.array([0.6]))
    np.testing.assert_array_equal(
        fitted(np.array([-1.0, 0.0, 1.0])), [[0, 0.6], [0.4, 0.6], [0.4, 1]]
    )
