from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logit
from scipy.stats import chi2

from model_store.decision.absent_share import (
    FLOOR,
    ServedShare,
    estimate_absent_share,
    prior_shift,
    shifted,
)
from model_store.decision.logistic import choice_probabilities

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("assumed", "expected"), [(0.05, 0.5), (0.05, 0.01), (0.4, 0.9), (0.4, 0.5), (0.5, 0.4)]
)
def test_the_shift_is_bayes_rule(assumed: float, expected: float) -> None:
    """Three labels and none, with any likelihoods: by hand, from one prior to another."""
    likelihoods = RNG.uniform(0.1, 2, 4)

    def posterior(absent: float) -> NDArray[np.float64]:
        prior = np.append(np.full(3, (1 - absent) / 3), absent)
        found: NDArray[np.float64] = likelihoods * prior / (likelihoods @ prior)
        return found

    before, after = posterior(assumed), posterior(expected)
    shift = prior_shift(assumed, expected)
    np.testing.assert_allclose(shifted(before[:3], before[3], shift), after[:3])
    log_odds = np.log(before[:3] / before[3])
    np.testing.assert_allclose(choice_probabilities(log_odds + shift), after[:3])


def test_without_a_shift_probabilities_are_what_they_were() -> None:
    probabilities = RNG.uniform(size=5)
    assert shifted(probabilities, 1 - probabilities, 0.0) is probabilities
    nearly = shifted(probabilities, 1 - probabilities, 1e-12)
    np.testing.assert_allclose(nearly, probabilities, rtol=1e-9)


def test_a_hundred_queries_are_enough_for_an_estimate() -> None:
    assert estimate_absent_share(np.full(99, 0.5), np.ones(99), 0.05) is None
    assert estimate_absent_share(np.full(100, 0.5), np.ones(100), 0.05) is not None
    assert estimate_absent_share(np.array([0.5]), np.array([100.0]), 0.05) is not None


def test_counts_of_another_histogram_are_refused() -> None:
    with pytest.raises(ValueError, match="wanted"):
        ServedShare(0.05, np.zeros(3))


def test_certain_probabilities_survive_the_largest_shift() -> None:
    for shift in (-800.0, 800.0):
        moved = shifted(np.array([1.0, 0.0]), np.array([0.0, 1.0]), shift)
        np.testing.assert_array_equal(moved, [1, 0])


def stream(share: float, n: int, seed: int) -> np.ndarray:
    """P(no match) at an assumed share of 5 % of n queries, of which a share has no match."""
    generator = np.random.default_rng(seed)
    absent = generator.uniform(size=n) < share
    score = generator.standard_normal(n) + 2.0 * absent  # log likelihood ratio 2 s − 2
    return 1 / (1 + np.exp(-(2 * score - 2 + logit(0.05))))


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_the_share_of_a_stream_is_found(share: float) -> None:
    inside, values = 0, []
    for seed in range(60):
        no_match = stream(share, 500, seed)
        found = estimate_absent_share(no_match, np.ones(500), 0.05)
        assert found is not None
        assert found.lower <= found.value <= found.upper
        inside += found.lower <= share <= found.upper
        values.append(found.value)
    assert np.mean(values) == pytest.approx(share, abs=0.02)
    assert inside >= 51  # of 60 at 95 %: 99.9 % of the time 51 or more


def test_the_estimate_is_where_expectation_maximisation_ends() -> None:
    no_match, share = stream(0.3, 400, 1), 0.5
    for _ in range(2000):
        absent = no_match * share / 0.05
        share = float((absent / (absent + (1 - no_match) * (1 - share) / 0.95)).mean())
    found = estimate_absent_share(no_match, np.ones(400), 0.05)
    assert found is not None
    assert found.value == pytest.approx(share, abs=1e-4)


def test_interval_ends_where_the_likelihood_ratio_test_rejects() -> None:
    no_match = stream(0.3, 400, 1)

    def log_likelihood(share: float) -> float:
        terms = share * no_match / 0.05 + (1 - share) * (1 - no_match) / 0.95
        return float(np.log(terms).sum())

    found = estimate_absent_share(no_match, np.ones(400), 0.05)
    assert found is not None
    for end in (found.lower, found.upper):
        fall = log_likelihood(found.value) - log_likelihood(end)
        assert fall == pytest.approx(chi2.ppf(0.95, 1) / 2, abs=1e-3)


def test_a_stream_without_absent_queries_promises_nothing_of_the_next() -> None:
    found = estimate_absent_share(np.full(500, 1e-6), np.ones(500), 0.05)
    assert found is not None
    assert (found.value, found.lower) == (FLOOR, FLOOR)
    assert estimate_absent_share(np.full(99, 0.5), np.ones(99), 0.05) is None


def test_what_is_counted_while_serving_gives_the_same_and_forgets_the_old() -> None:
    no_match = stream(0.4, 1000, 3)
    served = ServedShare(0.05)
    assert served.estimate() is None
    for value in no_match:
        served.observe(value)
    exact = estimate_absent_share(no_match, np.ones(1000), 0.05)
    found = served.estimate()
    assert found is not None
    assert exact is not None
    assert found.value == pytest.approx(exact.value, abs=0.02)
    for value in stream(0.02, 20_000, 4):
        served.observe(value)
    later = served.estimate()
    assert later is not None
    assert later.value < 0.05
    assert later.n_queries <= ServedShare.memory
    again = ServedShare(0.05, served.counts.copy()).estimate()
    assert again == later


def test_queries_as_likely_absent_as_not_leave_the_share_at_its_least() -> None:
    """The likelihood is the same everywhere: the lowest share, and an interval of all of them."""
    found = estimate_absent_share(np.full(100, 0.25), np.ones(100), 0.25)
    assert found is not None
    assert (found.value, found.lower, found.upper) == (FLOOR, FLOOR, 1 - FLOOR)


@pytest.mark.parametrize(("no_match", "place"), [(0.0, 0), (1e-12, 0), (1 - 1e-12, -1), (1.0, -1)])
def test_what_is_certain_counts_at_the_ends(no_match: float, place: int) -> None:
    served = ServedShare(0.05)
    served.observe(no_match)
    assert served.counts[place] == served.counts.sum() == 1
