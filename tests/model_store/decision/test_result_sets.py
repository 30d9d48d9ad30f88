from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from model_store.decision import ResultSetRule
from model_store.decision.result_sets import DELTA, MOST_UNPROMISED

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [40, 300, 5000])
def test_the_threshold_is_the_largest_that_the_binomial_test_lets_pass(
    coverage: float, n: int
) -> None:
    critical = np.sort(RNG.uniform(size=n))
    got = ResultSetRule(critical).threshold(coverage)
    # By the book: from the largest sets on, test "the error is above 1 − coverage" at each.
    best = None
    for threshold in critical:
        errors = int((critical < threshold).sum())
        if binomtest(errors, n, 1 - coverage, alternative="less").pvalue > DELTA:
            break
        best = float(threshold)
    assert got == best


def test_coverage_is_kept_in_nine_of_ten_calibrations() -> None:
    kept = 0
    for seed in range(400):
        generator = np.random.default_rng(seed)
        rule = ResultSetRule(np.sort(generator.uniform(size=200)))
        threshold = rule.threshold(0.9)
        assert threshold is not None
        kept += 1 - threshold >= 0.9  # of new queries, uniform as well, this share is covered
    assert kept >= binom.ppf(0.001, 400, 1 - DELTA)
    assert kept < 400  # nothing is given away


def test_a_set_holds_the_likeliest_label_and_all_above_the_threshold() -> None:
    rule = ResultSetRule(np.linspace(0, 1, 1001))
    threshold = rule.threshold(0.9)
    assert threshold == pytest.approx(0.088, abs=0.005)
    places = np.array([0, 3, 8])
    chosen = rule.choose(places, np.array([0.05, 0.6, 0.3]), 0.9)
    np.testing.assert_array_equal(chosen.places, [3, 8])
    assert (chosen.coverage, chosen.shortfall) == (0.9, None)
    alone = rule.choose(places, np.array([0.01, 0.03, 0.02]), 0.9)
    np.testing.assert_array_equal(alone.places, [3])


def test_where_the_first_guess_is_nearly_always_right_it_is_the_set() -> None:
    rule = ResultSetRule(np.r_[0.1, np.full(999, np.inf)])
    assert rule.threshold(0.95) == np.inf
    chosen = rule.choose(np.array([0, 1]), np.array([0.5, 0.4]), 0.95)
    np.testing.assert_array_equal(chosen.places, [0])


def test_too_few_queries_promise_nothing_and_say_how_many_are_needed() -> None:
    few, enough = (ResultSetRule(np.full(n, np.inf)) for n in (44, 45))
    assert few.threshold(0.95) is None
    assert enough.threshold(0.95) is not None
    chosen = few.choose(np.array([0, 2, 5]), np.array([0.9, 0.1, 0.0]), 0.95)
    np.testing.assert_array_equal(chosen.places, [0, 2, 5])
    assert chosen.shortfall == (
        "A coverage of 0.95 needs 45 calibration queries with a match; there are 44."
    )


def test_matches_that_are_not_found_at_all_cannot_be_promised() -> None:
    rule = ResultSetRule(np.sort(np.where(np.arange(1000) < 80, -1.0, 0.5)))
    assert rule.threshold(0.9) == 0.5
    assert rule.threshold(0.95) is None
    chosen = rule.choose(np.array([0]), np.array([0.9]), 0.95)
    assert chosen.shortfall is not None
    assert "0.920" in chosen.shortfall


def test_an_unpromised_set_is_of_the_likeliest_labels() -> None:
    probabilities = RNG.permutation(np.linspace(0, 1, 80))
    chosen = ResultSetRule(np.ones(3)).choose(np.arange(80) * 2, probabilities, 0.95)
    assert chosen.shortfall is not None
    likeliest = np.argsort(probabilities)[-MOST_UNPROMISED:]
    np.testing.assert_array_equal(chosen.places, np.sort(likeliest) * 2)
