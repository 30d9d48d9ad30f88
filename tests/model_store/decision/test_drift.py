from __future__ import annotations

import json
from copy import copy
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.decision import DriftState, DriftTest, reference_of
from model_store.decision.drift import (
    ALARM,
    CALM,
    PERIOD,
    ExceedanceReference,
    MixtureReference,
    _log_mixture,
)
from model_store.messages import Absence
from tests.benchmarks.promises.drift import CHANGES, SHARES, alarms
from tests.support.calibration_evidence import evidence
from tests.support.certified_bundles import calibration
from tests.support.narrowing import not_none

Floats = NDArray[np.float64]

DISTANCE = 2.0
"""Between scores of absent and matched queries."""

_GENERATOR = np.random.default_rng(0)
MATCHED, ABSENT = _GENERATOR.standard_normal(500), DISTANCE + _GENERATOR.standard_normal(500)
REFERENCE = MixtureReference(MATCHED, ABSENT)


def stream(n: int, seed: int, shift: float = 0.0, share: float = 0.1) -> Floats:
    generator = np.random.default_rng([seed, 9])
    is_absent = generator.random(n) < share
    scores: Floats = generator.standard_normal(n) + DISTANCE * is_absent + shift
    return scores


def noticed_after(test: DriftTest, scores: Floats) -> int | None:
    """Number of scores until the test fires."""
    for number, score in enumerate(scores.tolist(), 1):
        test.observe(score)
        if test.drifted:
            return number
    return None


def drifted_test() -> DriftTest:
    test = DriftTest(REFERENCE)
    assert noticed_after(test, stream(200, 9, shift=-2.5)) is not None
    return test


class TestMixture:
    @pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.5, 1.0])
    def test_no_bet_is_expected_to_gain_at_any_share(self, share: float) -> None:
        """By the estimated distributions exactly; by fresh scores up to their error."""
        factors = np.array(REFERENCE.factors([0.0] * (len(REFERENCE.edges) + 1)))
        mixture = (1 - share) * REFERENCE._matched + share * REFERENCE._absent
        assert mixture.sum() == pytest.approx(1)
        assert (factors @ mixture <= 1 + 1e-9).all()
        places = np.searchsorted(REFERENCE.edges, stream(50_000, 1, share=share))
        assert (factors[:, places].mean(axis=1) <= 1.1).all()

    @pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
    def test_the_reference_learns_from_served_queries(self, share: float) -> None:
        small = MixtureReference(MATCHED[:60], ABSENT[:60])
        places = np.searchsorted(small.edges, stream(5_000, 2, share=share))
        counts = np.bincount(places, minlength=len(small.edges) + 1).astype(np.float64)

        def distance_to_truth(served: Floats) -> float:
            matched, absent = small._learned(served)
            mixtures = [(1 - at) * matched + at * absent for at in np.linspace(0, 1, 51)]
            return min(float(np.abs(one - counts / counts.sum()).sum()) for one in mixtures)

        assert distance_to_truth(counts) < 0.2 * distance_to_truth(0 * counts)

    @pytest.mark.parametrize("case", SHARES)
    def test_a_change_of_the_share_alone_seldom_fires(self, case: str) -> None:
        """Measured over 600 streams each: 0 to 0.01; above 2 of 40 has a probability of 0.007."""
        assert sum(alarms(case, 300, seed)["found"] for seed in range(40)) <= 2

    @pytest.mark.parametrize(("case", "least"), [("spread", 0.85), ("deviation", 0.25)])
    def test_a_change_is_found_within_300_queries(self, case: str, least: float) -> None:
        assert case in CHANGES
        found = [alarms(case, 300, seed)["found"] for seed in range(30)]
        assert np.mean(found) >= least

    def test_a_change_that_comes_later_is_found(self) -> None:
        test = DriftTest(REFERENCE)
        assert noticed_after(test, stream(1000, 3)) is None
        assert not_none(noticed_after(test, stream(300, 4, shift=-1.5))) < 150

    def test_few_calibration_queries_need_more_evidence(self) -> None:
        def needed(n: int) -> float:
            few = copy(REFERENCE)
            few.n = n
            return DriftTest(few)._alarm

        assert [needed(n) - ALARM for n in (50, 99, 100, 101)] == pytest.approx([1, 1 / 99, 0, 0])


class TestViews:
    """A gallery that was calibrated with generated views: better queries are no drift."""

    def reference(self, seed: int = 0) -> ExceedanceReference:
        generator = np.random.default_rng([seed, 1])
        return ExceedanceReference(generator.standard_normal(220), generator.normal(1, 1, 220))

    def test_better_queries_are_no_drift_nor_are_views_after_them(self) -> None:
        alarmed = 0
        for seed in range(30):
            changing = np.where(np.arange(1500) % 100 < 50, -3.0, 0.0)
            scores = np.random.default_rng(seed).standard_normal(1500) + changing
            alarmed += noticed_after(DriftTest(self.reference(seed)), scores) is not None
        assert alarmed <= 2

    def test_absent_queries_as_in_calibration_are_no_drift(self) -> None:
        alarmed = 0
        for seed in range(30):
            scores = np.random.default_rng([seed, 2]).normal(1, 1, 1000)
            alarmed += noticed_after(DriftTest(self.reference(seed)), scores) is not None
        assert alarmed <= 2

    def test_worse_queries_than_absent_ones_are_found(self) -> None:
        for seed in range(5):
            scores = np.random.default_rng([seed, 3]).normal(2.5, 1, 300)
            assert not_none(noticed_after(DriftTest(self.reference(seed)), scores)) < 100

    @pytest.mark.parametrize("n", [50, 220])
    def test_bounds_hold_for_all_tails_at_once(self, n: int) -> None:
        """Of uniform scores, whose exceedances are known: at most 1 % of calibrations miss one."""
        missed = 0
        for seed in range(600):
            scores = np.random.default_rng(seed).uniform(size=n)
            reference = ExceedanceReference(scores, scores)
            gains = np.array(reference.factors([]))[:, -1]
            edges = np.sort(np.array(reference.edges))[::-1]
            missed += bool((1 - edges > gains**-2).any())
        assert missed <= 14  # 6 expected at most; more than 14 has a probability of 0.002

    def test_bounds_are_finite_where_every_matched_score_exceeds_the_absent_ones(self) -> None:
        scores = np.arange(60.0)
        factors = np.array(ExceedanceReference(scores + 100, scores).factors([]))
        assert np.isfinite(factors).all()

    def test_a_score_of_just_an_edge_is_not_beyond_it(self) -> None:
        reference = ExceedanceReference(np.repeat([0.0, 1.0, 2.0], 40), np.repeat([0.0, 2.0], 40))
        factors = np.array(reference.factors([]))
        for edge in reference.edges:
            at, above = (
                np.searchsorted(reference.edges, score) for score in (edge, np.nextafter(edge, 9))
            )
            assert (factors[:, at] <= factors[:, above]).all()
            assert (factors[:, at] < factors[:, above]).any()


class TestReferenceOf:
    def test_the_kind_of_test_depends_on_the_absent_queries(self) -> None:
        def kind(absence: Absence) -> type[object]:
            known = replace(
                calibration(evidence(absence=absence)), absent_outlier_scores=np.arange(60.0)
            )
            return type(reference_of(known))

        assert kind("near_misses_of_views") is ExceedanceReference
        assert kind("absent_labels") is MixtureReference
        assert kind("hidden_labels") is MixtureReference

    @pytest.mark.parametrize("absent", [None, np.zeros(0)], ids=["of an earlier release", "none"])
    def test_without_absent_scores_there_is_no_test(self, absent: Floats | None) -> None:
        without = replace(calibration(evidence()), absent_outlier_scores=absent)
        assert reference_of(without) is None
        assert DriftTest.of(without) is None

    @pytest.mark.parametrize(
        ("matched", "absent", "is_tested"),
        [(0.0, 1.0, False), (1.0, 0.0, False), (0.001, 0.001, True)],
    )
    def test_scores_without_any_spread_have_no_test(
        self, matched: float, absent: float, is_tested: bool
    ) -> None:
        known = replace(
            calibration(evidence()),
            outlier_scores=matched * np.arange(60.0),
            absent_outlier_scores=absent * np.arange(60.0),
        )
        assert (reference_of(known) is not None) is is_tested


class TestAlarm:
    def test_the_state_continues_after_a_restart(self) -> None:
        scores = stream(900, 8, shift=0.15)
        through, first = DriftTest(REFERENCE), DriftTest(REFERENCE)
        for score in scores.tolist():
            through.observe(score)
        for score in scores[:510].tolist():
            first.observe(score)
        state = first.state()
        numbers = json.loads(json.dumps(state.numbers))
        second = DriftTest(MixtureReference(MATCHED, ABSENT))
        second.restore(DriftState(state.counts, state.learned, numbers))
        assert (second.n_served, second.log_capital) == (510, first.log_capital)
        for score in scores[510:].tolist():
            second.observe(score)
        assert (second.n_served, second.log_capital) == (900, through.log_capital)

    def test_an_alarm_lasts_through_a_restart(self) -> None:
        again = DriftTest(REFERENCE)
        again.restore(drifted_test().state())
        assert again.drifted

    def test_a_state_of_another_reference_is_ignored(self) -> None:
        again = DriftTest(MixtureReference(MATCHED + 1, ABSENT))
        again.restore(drifted_test().state())
        assert (again.n_served, again.drifted) == (0, False)

    def test_an_alarm_ends_after_enough_ordinary_queries(self) -> None:
        test = drifted_test()
        ordinary = stream(CALM, 5).tolist()
        for score in ordinary[:-1]:
            test.observe(score)
        assert test.drifted
        test.observe(ordinary[-1])
        assert not test.drifted

    def test_state_without_an_alarm_waits_for_no_query(self) -> None:
        test = DriftTest(REFERENCE)
        test.observe(0.0)
        assert test.state().numbers["alarmed_for"] == 0

    def test_an_alarm_lasts_as_long_as_the_drift(self) -> None:
        test = drifted_test()
        for score in stream(2 * CALM, 6, shift=-2.5).tolist():
            test.observe(score)
            assert test.drifted

    def test_an_alarm_that_took_long_lasts_twice_as_long(self) -> None:
        test = DriftTest(REFERENCE)
        took = noticed_after(test, stream(CALM, 7))
        assert took is None
        took = CALM + not_none(noticed_after(test, stream(300, 8, shift=-2.5)))
        for score in stream(2 * took - 1, 9).tolist():
            test.observe(score)
        assert test.drifted
        test.observe(0.0)
        assert not test.drifted

    def test_an_acknowledged_test_begins_again(self) -> None:
        test = drifted_test()
        test.acknowledge()
        assert (test.drifted, test.n_served, test.log_capital) == (False, 0, 0.0)
        assert noticed_after(test, stream(200, 9, shift=-2.5)) is not None

    def test_it_begins_again_after_a_period(self) -> None:
        test = DriftTest(REFERENCE)
        for score in stream(PERIOD, 6).tolist():
            test.observe(score)
        assert test.n_served == PERIOD
        test.observe(0.0)
        assert test.n_served == 1
        assert abs(test.log_capital) < 0.5


@pytest.mark.parametrize(("present", "later"), [(0.0, 0.0), (2.0, -3.0), (-5e3, 1.0), (1.0, -5e3)])
def test_capitals_are_mixed_however_far_apart_they_are(present: float, later: float) -> None:
    mixed = np.logaddexp(np.log(0.6) + present, np.log(0.4) + later)
    assert _log_mixture(present, later) == pytest.approx(mixed)
