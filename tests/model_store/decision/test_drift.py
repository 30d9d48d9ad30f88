from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import norm

from model_store.decision import DriftState, DriftTest
from model_store.decision.drift import CALM, PERIOD, _log_mixture
from model_store.decision.drift_bets import ExceedanceBets, likelihood_ratios
from model_store.verdicts import Absence
from tests.support.calibration_evidence import evidence
from tests.support.certified_bundles import calibration

Floats = NDArray[np.float64]

CALIBRATION = np.random.default_rng(0).standard_normal(500)


def stream(n: int, seed: int, shift: float = 0.0) -> Floats:
    return np.random.default_rng(seed).standard_normal(n) + shift


def test_the_capital_is_that_of_the_equations() -> None:
    """Normal likelihood ratios of p-values counted by hand, and the mixture written out."""
    test = DriftTest(CALIBRATION, seed=3)
    ties = np.random.default_rng(3)
    seen = list(CALIBRATION)
    bets = [norm(0.4, 1), norm(-0.4, 1), norm(0, 1.3), norm(0, 0.75)]
    present, later = np.full(4, 0.6 / 4), np.full(5, 0.4 / 5)
    for score in stream(60, 1, shift=0.3):
        fading = len(CALIBRATION) / len(seen)
        seen.append(score)
        larger, equal = sum(s > score for s in seen), sum(s == score for s in seen)
        z = norm.ppf((larger + ties.uniform() * equal) / len(seen))
        ratios = np.array([bet.pdf(z) / norm.pdf(z) for bet in bets])
        present *= 1 - fading + fading * ratios
        later = (0.997 * later + 0.003 * later.sum() / 5) * np.array([1, *ratios])
        test.observe(score)
        assert test.log_capital == pytest.approx(np.log(present.sum() + later.sum()))


@pytest.mark.parametrize("bet", range(4))
def test_no_bet_is_expected_to_gain_on_uniform_p_values(bet: int) -> None:
    expected, _ = quad(lambda p: likelihood_ratios(p)[bet], 0, 1, limit=200)
    assert expected == pytest.approx(1, abs=1e-4)


def noticed_after(test: DriftTest, scores: Floats) -> int | None:
    """Number of scores until the test says that they drifted."""
    for number, score in enumerate(scores, 1):
        test.observe(score)
        if test.drifted:
            return number
    return None


def share_found(n: int, change: Callable[[Floats], Floats], seeds: range) -> float:
    """Share of streams of 2,000 queries in which ``change`` is found, of n calibration queries."""
    found = 0
    for seed in seeds:
        generator = np.random.default_rng(seed)
        test = DriftTest(generator.standard_normal(n), seed)
        found += noticed_after(test, change(generator.standard_normal(2000))) is not None
    return found / len(seeds)


@pytest.mark.parametrize("spread", [1.5, 1 / 1.5])
def test_a_wider_and_a_narrower_stream_are_found(spread: float) -> None:
    """Measured over 300 streams: 0.85 and more; below 0.7 in 40 has a probability of 0.01."""
    assert share_found(100, lambda scores: spread * scores, range(40)) >= 0.7


def test_a_fifth_of_outliers_is_found() -> None:
    def with_outliers(scores: Floats) -> Floats:
        spoilt: Floats = scores + 3 * (np.arange(len(scores)) % 5 == 0)
        return spoilt

    assert share_found(100, with_outliers, range(30)) >= 0.7


@pytest.mark.parametrize("only_worse", [False, True])
def test_it_goes_on_after_a_restart_as_if_nothing_had_been(*, only_worse: bool) -> None:
    scores = stream(900, 8, shift=0.15)
    through = DriftTest(CALIBRATION, seed=1, only_worse=only_worse)
    for score in scores:
        through.observe(score)
    first = DriftTest(CALIBRATION, seed=1, only_worse=only_worse)
    for score in scores[:500]:
        first.observe(score)
    state = first.state()
    numbers = json.loads(json.dumps(state.numbers))
    second = DriftTest(CALIBRATION, seed=2, only_worse=only_worse)
    second.restore(DriftState(state.scores, numbers))
    assert (second.n_served, second.log_capital) == (500, first.log_capital)
    for score in scores[500:]:
        second.observe(score)
    assert (second.n_served, second.log_capital) == (900, through.log_capital)


def test_an_alarm_lasts_through_a_restart() -> None:
    test = DriftTest(CALIBRATION)
    for score in stream(200, 9, shift=2.0):
        test.observe(score)
    again = DriftTest(CALIBRATION)
    again.restore(test.state())
    assert test.drifted
    assert again.drifted


def of_views(n: int, seed: int = 0) -> DriftTest:
    """A test of a gallery that was calibrated with views."""
    scores = np.random.default_rng([seed, 1]).standard_normal(n)
    return DriftTest(scores, only_worse=True)


def test_better_photographs_than_views_are_no_drift_nor_are_views_after_them() -> None:
    alarms = 0
    for seed in range(40):
        changing = np.where(np.arange(1500) % 100 < 50, -3.0, 0.0)  # good ones, and such as views
        scores = np.random.default_rng(seed).standard_normal(1500) + changing
        alarms += noticed_after(of_views(220, seed), scores) is not None
    assert alarms <= 4  # 0.8 expected at most; more than 4 has a probability below 0.002


@pytest.mark.parametrize(
    ("change", "most"),
    [(np.full(300, 1.0), 100), (np.where(np.arange(400) % 5 == 0, 3.0, 0.0), 300)],
    ids=["all", "a fifth"],
)
def test_worse_ones_than_views_are_noticed(change: Floats, most: int) -> None:
    """Measured over 20 streams: after 30 queries, and after 131."""
    for seed in range(5):
        needed = noticed_after(of_views(220, seed), stream(len(change), seed) + change)
        assert needed is not None
        assert needed < most


@pytest.mark.parametrize("n", [50, 220])
def test_the_shares_that_are_bet_on_are_bounds_for_all_tails_at_once(n: int) -> None:
    """Of uniform scores, whose exceedances are known: missed by one calibration of a hundred."""
    missed = 0
    for seed in range(1000):
        scores = np.sort(np.random.default_rng(seed).uniform(size=n)).tolist()
        bets = ExceedanceBets(scores).described
        missed += any(1 - least > gain**-2 for least, gain in bets)
    assert missed <= 20  # 10 expected at most; more than 20 has a probability of 0.002


def test_no_bet_is_expected_to_gain_where_its_bound_holds() -> None:
    bets = ExceedanceBets(np.linspace(0, 1, 100).tolist())
    for place, (least, gain) in enumerate(bets.described):
        above, below = (bets.factors(least + step)[0][place] for step in (1e-9, -1e-9))
        bound = gain**-2
        assert bound * above + (1 - bound) * below == pytest.approx(1)
        assert above > 1 > below


@pytest.mark.parametrize(
    ("absence", "is_drift"), [("near_misses_of_views", False), ("absent_labels", True)]
)
def test_what_is_a_drift_depends_on_what_was_calibrated_with(
    absence: Absence, *, is_drift: bool
) -> None:
    test = DriftTest.of(calibration(evidence(absence=absence)))
    assert (noticed_after(test, stream(100, 4, shift=-3.0)) is not None) is is_drift


def test_a_state_of_other_bets_is_left_aside() -> None:
    test = DriftTest(CALIBRATION)
    for score in stream(50, 9):
        test.observe(score)
    state = test.state()
    other = DriftState(state.scores, {**state.numbers, "bets": [[1.0, 1.0]]})
    again = DriftTest(CALIBRATION)
    again.restore(other)
    assert again.n_served == 0


def test_a_stream_like_the_calibration_queries_seldom_alarms() -> None:
    alarms = 0
    for seed in range(200):
        scores = np.random.default_rng(seed).standard_normal(400)
        alarms += noticed_after(DriftTest(scores[:100]), scores[100:]) is not None
    assert alarms <= 8  # 2 expected at most; more than 8 has a probability below 0.001


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_a_shift_is_noticed_either_way_and_soon(shift: float) -> None:
    test = DriftTest(CALIBRATION)
    for score in stream(1000, 2):
        test.observe(score)
    assert not test.drifted
    needed = noticed_after(test, stream(200, 3, shift))
    assert needed is not None
    assert needed < 60


def test_an_alarm_lasts_as_long_as_the_drift_and_then_ends() -> None:
    test = DriftTest(CALIBRATION)
    for score in stream(3000, 4, shift=1.5):
        test.observe(score)
    assert test.drifted
    for score in stream(CALM + 200, 5):
        test.observe(score)
    assert not test.drifted


def test_equal_scores_are_no_evidence() -> None:
    test = DriftTest(np.zeros(100))
    for _ in range(2000):
        test.observe(0.0)
    assert not test.drifted
    assert test.log_capital < 2


def test_it_begins_anew_after_a_period() -> None:
    test = DriftTest(CALIBRATION)
    for score in stream(PERIOD, 6):
        test.observe(score)
    assert test.n_served == PERIOD
    test.observe(0.0)
    assert test.n_served == 1
    assert abs(test.log_capital) < 0.5


def test_capital_that_just_reaches_the_alarm_fires_and_the_next_query_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores, first, test = stream(5, 2, shift=2.0), DriftTest(CALIBRATION), DriftTest(CALIBRATION)
    for score in scores:
        first.observe(score)
    assert not first.drifted
    monkeypatch.setattr("model_store.decision.drift.ALARM", first.log_capital)
    assert noticed_after(test, scores) == len(scores)
    test.observe(0.0)
    assert test.n_served == 1


@pytest.mark.parametrize(("calm", "drifted_for"), [(3, 10), (12, 12)])
def test_it_says_so_for_twice_as_long_as_it_took_and_for_a_while_at_least(
    monkeypatch: pytest.MonkeyPatch, calm: int, drifted_for: int
) -> None:
    scores, first, test = stream(5, 2, shift=2.0), DriftTest(CALIBRATION), DriftTest(CALIBRATION)
    for score in scores:
        first.observe(score)
    monkeypatch.setattr("model_store.decision.drift.CALM", calm)
    monkeypatch.setattr("model_store.decision.drift.ALARM", first.log_capital)
    assert noticed_after(test, scores) == len(scores)
    said = [test.drifted]
    for score in stream(drifted_for, 3):
        test.observe(score)
        said.append(test.drifted)
    assert said == [True] * drifted_for + [False]


def test_a_score_of_just_the_bound_of_a_tail_is_not_beyond_it() -> None:
    """Gains are bounds for P(score > bound): equal scores, however many, are no evidence."""
    bets = ExceedanceBets(np.repeat([0.0, 1.0, 2.0], 40).tolist())
    for place, (least, gain) in enumerate(bets.described):
        assert bets.factors(least)[0][place] < 1
        assert bets.factors(np.nextafter(least, 9))[0][place] == gain


@pytest.mark.parametrize(("present", "later"), [(0.0, 0.0), (2.0, -3.0), (-5e3, 1.0), (1.0, -5e3)])
def test_capitals_are_mixed_however_far_apart_they_are(present: float, later: float) -> None:
    mixed = np.logaddexp(np.log(0.6) + present, np.log(0.4) + later)
    assert _log_mixture(present, later) == pytest.approx(mixed)
