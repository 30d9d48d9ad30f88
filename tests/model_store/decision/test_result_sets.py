from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from model_store.decision import ResultSetRule
from model_store.decision.promises import MOST_UNPROMISED, ResultSetChoice
from tests.support.calibration_evidence import of_critical

RNG = np.random.default_rng(0)
DELTA = 0.1
MANY = np.array([0, 0, 5])
"""Labels of a gallery whose labels all have many items."""


def rule_of(critical: np.ndarray) -> ResultSetRule:
    return ResultSetRule(of_critical(critical), MANY, DELTA)


def threshold_of(rule: ResultSetRule, coverage: float) -> float | None:
    """The lowest probability that is in a set beside a certain label; None where none is."""
    if rule.shortfall(coverage) is not None:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        probabilities = np.array([2.0, middle])
        chosen = rule.choose(np.arange(2), probabilities, np.full(2, 2, np.int8), coverage)
        low, high = (low, middle) if len(chosen.places) == 2 else (middle, high)
    return high


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [40, 300, 5000])
def test_the_threshold_is_the_largest_that_the_binomial_test_lets_pass(
    coverage: float, n: int
) -> None:
    critical = np.sort(RNG.uniform(size=n))
    # By the book: from the largest sets on, test "the error is above 1 − coverage" at each.
    best = None
    for threshold in critical:
        errors = int((critical < threshold).sum())
        if binomtest(errors, n, 1 - coverage, alternative="less").pvalue > DELTA:
            break
        best = float(threshold)
    got = threshold_of(rule_of(critical), coverage)
    assert got == (None if best is None else pytest.approx(best))


def test_coverage_is_kept_in_nine_of_ten_calibrations() -> None:
    kept = 0
    for seed in range(400):
        critical = np.random.default_rng(seed).uniform(size=200)
        threshold = threshold_of(rule_of(critical), 0.9)
        assert threshold is not None
        kept += 1 - threshold >= 0.9  # of new queries, uniform as well, this share is covered
    assert kept >= binom.ppf(0.001, 400, 1 - DELTA)
    assert kept < 400  # nothing is given away


def test_dependent_queries_promise_less() -> None:
    """Ten photographs of each of 100 objects, all covered or none: 100 independent queries."""
    critical = np.repeat(RNG.uniform(size=100), 10)
    alone = threshold_of(rule_of(critical), 0.9)
    evidence = of_critical(critical, clusters=np.repeat(np.arange(100), 10))
    together = threshold_of(ResultSetRule(evidence, MANY, DELTA), 0.9)
    of_objects = threshold_of(rule_of(critical[::10]), 0.9)
    assert alone is not None
    assert together is not None
    assert together < alone
    assert together == pytest.approx(of_objects, abs=0.02)


def test_photographs_that_are_all_right_are_no_more_evidence_than_their_objects() -> None:
    """Four photographs an object: twenty objects do not promise what takes 45 queries."""
    promised = [
        ResultSetRule(
            of_critical(np.full(4 * n, np.inf), clusters=np.repeat(np.arange(n), 4)), MANY, DELTA
        ).promised_for(0.95)
        for n in (20, 44, 45)
    ]
    assert promised == [(), (), ("many",)]


def choose(
    rule: ResultSetRule, places: list[int], probabilities: list[float], coverage: float
) -> ResultSetChoice:
    classes = np.full(len(places), 2, dtype=np.int8)
    return rule.choose(np.array(places), np.array(probabilities), classes, coverage)


def test_a_set_holds_the_likeliest_label_and_all_above_the_threshold() -> None:
    rule = rule_of(np.linspace(0, 1, 1001))
    assert threshold_of(rule, 0.9) == pytest.approx(0.088, abs=0.005)
    chosen = choose(rule, [0, 3, 8], [0.05, 0.6, 0.3], 0.9)
    np.testing.assert_array_equal(chosen.places, [3, 8])
    assert (chosen.coverage, chosen.shortfall) == (0.9, None)
    assert chosen.promised_for == ("many",)
    alone = choose(rule, [0, 3, 8], [0.01, 0.03, 0.02], 0.9)
    np.testing.assert_array_equal(alone.places, [3])


def test_where_the_first_guess_is_nearly_always_right_it_is_the_set() -> None:
    chosen = choose(rule_of(np.r_[0.1, np.full(999, np.inf)]), [0, 1], [0.5, 0.4], 0.95)
    np.testing.assert_array_equal(chosen.places, [0])


def test_too_few_queries_promise_nothing_and_say_how_many_are_needed() -> None:
    few, enough = (rule_of(np.full(n, np.inf)) for n in (44, 45))
    assert enough.shortfall(0.95) is None
    chosen = choose(few, [0, 2, 5], [0.9, 0.1, 0.0], 0.95)
    np.testing.assert_array_equal(chosen.places, [0, 2, 5])
    assert chosen.promised_for == ()
    assert chosen.shortfall == (
        "A coverage of 0.95 needs 45 independent calibration queries with a match; there are 44."
    )


def test_a_label_of_just_the_threshold_is_in_the_set() -> None:
    rule = rule_of(np.full(100, 0.25))
    chosen = choose(rule, [0, 1, 2], [0.6, 0.25, float(np.nextafter(0.25, 0))], 0.9)
    np.testing.assert_array_equal(chosen.places, [0, 1])


def test_a_match_that_is_found_without_any_probability_is_found() -> None:
    """Its set is the whole list, which no set of a match that is not found would be."""
    rule = rule_of(np.zeros(100))
    chosen = choose(rule, [0, 1, 2], [0.9, 0.1, 0.0], 0.9)
    assert chosen.shortfall is None
    np.testing.assert_array_equal(chosen.places, [0, 1, 2])
    half = rule_of(np.where(np.arange(100) < 50, -1.0, 0.0)).shortfall(0.9)
    assert half is not None
    assert "share of 0.5 have" in half
    just_enough = rule_of(np.r_[-1.0, np.zeros(21)]).shortfall(0.9)  # log δ / log 0.9 = 21.9
    assert just_enough is not None
    assert "0.955" in just_enough, "one that is not found, and not too few queries"


def test_whoever_asks_for_ever_new_coverages_takes_no_more_memory() -> None:
    rule = rule_of(np.ones(50))
    for coverage in np.linspace(0.5, 0.9, 2500):
        rule.promised_for(float(coverage))
    assert cast("Any", rule._at).cache_info().currsize <= 1001


def test_matches_that_are_not_found_at_all_cannot_be_promised() -> None:
    rule = rule_of(np.where(np.arange(1000) < 80, -1.0, 0.5))
    assert rule.shortfall(0.9) is None
    shortfall = choose(rule, [0], [0.9], 0.95).shortfall
    assert shortfall is not None
    assert "share of 0.92 have" in shortfall


def test_an_unpromised_set_is_of_the_likeliest_labels() -> None:
    probabilities = RNG.permutation(np.linspace(0, 1, 80))
    chosen = choose(rule_of(np.ones(3)), list(range(0, 160, 2)), probabilities.tolist(), 0.95)
    assert chosen.shortfall is not None
    likeliest = np.argsort(probabilities)[-MOST_UNPROMISED:]
    np.testing.assert_array_equal(chosen.places, np.sort(likeliest) * 2)


def test_of_labels_as_likely_the_nearest_are_in_an_unpromised_set() -> None:
    chosen = choose(rule_of(np.ones(3)), list(range(80)), [0.01] * 80, 0.95)
    assert chosen.places.tolist() == list(range(MOST_UNPROMISED))


@pytest.mark.parametrize(
    ("shown", "n_labels", "whom"),
    [
        (2, [150, 0, 20], "one item (150 of 170 labels)"),
        (2, [0, 150, 20], "2 to 5 items (150 of 170 labels)"),
        (0, [20, 0, 150], "more than 5 items (150 of 170 labels)"),
        (0, [1, 0, 150], "more than 5 items (150 of 151 labels)"),
    ],
)
def test_labels_that_no_query_shows_are_promised_nothing(
    shown: int, n_labels: list[int], whom: str
) -> None:
    """Twenty labels were asked about, a hundred and fifty of another size were not."""
    of = of_critical(np.full(200, np.inf), np.full(200, shown))
    rule = ResultSetRule(of, np.array(n_labels), DELTA)
    assert rule.promised_for(0.9) == (("one", "few", "many")[shown],)
    shortfall = rule.shortfall(0.9)
    assert shortfall is not None
    assert whom in shortfall


def test_each_size_class_has_a_threshold_of_its_own() -> None:
    """Labels of one item are found with low probabilities: they get a low threshold."""
    critical = np.r_[RNG.uniform(0.5, 1, 400), RNG.uniform(0, 0.5, 400)]
    evidence = of_critical(critical, np.repeat([2, 0], 400))
    rule = ResultSetRule(evidence, np.array([10, 0, 10]), DELTA)
    assert rule.shortfall(0.9) is None
    fresh = np.random.default_rng(1)
    for size_class, low, high in ((2, 0.5, 1.0), (0, 0.0, 0.5)):
        truth = fresh.uniform(low, high, 2000)
        classes = np.array([2, size_class], dtype=np.int8)
        covered = [
            1 in rule.choose(np.arange(2), np.array([2.0, p]), classes, 0.9).places for p in truth
        ]
        assert 0.9 <= np.mean(covered) < 0.95


def test_size_class_without_a_label_is_promised_nothing() -> None:
    critical = np.full(400, np.inf)
    rule = ResultSetRule(of_critical(critical, np.repeat([2, 0], 200)), MANY, DELTA)
    assert rule.promised_for(0.9) == ("many",)


def test_a_size_class_without_a_promise_has_the_lowest_threshold() -> None:
    critical = np.r_[np.full(200, 0.6), np.full(200, 0.2)]
    rule = ResultSetRule(of_critical(critical, np.repeat([2, 0], 200)), np.array([9, 9, 9]), DELTA)
    classes = np.array([2, 1, 1], dtype=np.int8)
    chosen = rule.choose(np.arange(3), np.array([0.7, 0.2, 0.1]), classes, 0.9)
    assert chosen.places.tolist() == [0, 1]
