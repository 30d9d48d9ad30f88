from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from scipy.special import betaln, xlog1py, xlogy
from scipy.stats import beta, binom

from model_store.decision import ErrorTest, error_interval
from model_store.decision.betting import ALARM


def fed(max_error: float, wrong: np.ndarray) -> ErrorTest:
    test = ErrorTest(max_error)
    for one in wrong:
        test.observe(wrong=bool(one))
    return test


def answers(n: int, rate: float, seeds: range) -> Iterator[np.ndarray]:
    """Which of n matches are wrong, for each seed."""
    for seed in seeds:
        yield np.random.default_rng(seed).random(n) < rate


def test_the_evidence_is_the_product_of_bets_on_a_bounded_mean() -> None:
    """Waudby-Smith & Ramdas 2024: 1 + λ (x − m), written out, with the movement between bets."""
    m = 0.05
    rates = [times * m / (1 - m + times * m) for times in (1.5, 2, 3)]
    bets = np.array([0, *((q - m) / (m * (1 - m)) for q in rates)])
    assert (bets < 1 / m).all()
    wrong = next(answers(80, 0.1, range(1)))
    capitals = np.full(4, 0.25)
    for x in wrong:
        capitals = (0.999 * capitals + 0.001 * capitals.sum() / 4) * (1 + bets * (x - m))
    assert fed(m, wrong).log_evidence == pytest.approx(np.log(capitals.sum()))


@pytest.mark.parametrize("max_error", [0.01, 0.05, 0.4])
def test_the_error_that_is_accepted_seldom_alarms_however_often_one_looks(max_error: float) -> None:
    alarms = sum(fed(max_error, wrong).alarmed for wrong in answers(1000, max_error, range(300)))
    assert alarms <= binom.ppf(0.999, 300, 0.01)


def test_no_order_of_rates_below_the_accepted_one_helps() -> None:
    """The past may choose the next rate, as long as that is accepted."""
    alarms = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        test = ErrorTest(0.1)
        for _ in range(500):
            rate = 0.1 if test.log_evidence > -1 else 0.02
            test.observe(wrong=generator.random() < rate)
        alarms += test.alarmed
    assert alarms <= binom.ppf(0.999, 200, 0.01)


@pytest.mark.parametrize(("times", "n"), [(2, 700), (3, 250)])
def test_more_errors_than_accepted_are_found(times: int, n: int) -> None:
    found = [fed(0.05, wrong).alarmed for wrong in answers(n, 0.05 * times, range(50))]
    assert np.mean(found) >= 0.9


def test_errors_that_begin_late_are_found() -> None:
    found = []
    for seed in range(30):
        wrong = np.random.default_rng(seed).random(1500) < np.where(
            np.arange(1500) < 1000, 0.02, 0.2
        )
        assert not fed(0.05, wrong[:1000]).alarmed
        found.append(fed(0.05, wrong).alarmed)
    assert np.mean(found) >= 0.9


def test_an_alarm_stays() -> None:
    test = fed(0.05, np.r_[np.ones(10), np.zeros(2000)])
    assert test.log_evidence < ALARM
    assert test.alarmed
    assert (test.n, test.n_wrong) == (2010, 10)


def test_no_error_accepted_is_no_division_by_zero() -> None:
    assert not fed(0.0, np.zeros(1000)).alarmed
    assert fed(0.0, np.ones(10)).alarmed


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_the_interval_holds_the_rate_at_all_times(rate: float) -> None:
    bounds, missed = cache(error_interval), 0
    for wrong in answers(400, rate, range(200)):
        sums = np.cumsum(wrong)
        for n in range(1, 401, 3):
            lower, upper = bounds(n, int(sums[n - 1]))
            if not lower <= rate <= upper:
                missed += 1
                break
    assert missed <= binom.ppf(0.999, 200, 0.05)


def test_the_interval_is_where_the_mixture_has_no_evidence() -> None:
    prior = beta(0.5, 0.5)
    lower, upper = error_interval(120, 7)
    for rate in (lower, upper):

        def ratio(q: float, p: float = rate) -> float:
            return (q / p) ** 7 * ((1 - q) / (1 - p)) ** 113

        assert prior.expect(ratio) == pytest.approx(20, rel=1e-3)
    assert lower < 7 / 120 < upper


def test_without_a_review_nothing_is_known_of_the_rate() -> None:
    assert error_interval(0, 0) == (0.0, 1.0)
    assert error_interval(10, 0)[0] == 0.0
    assert error_interval(10, 10)[1] == 1.0


def test_without_any_confidence_and_review_every_rate_is_as_good() -> None:
    assert error_interval(0, 0, confidence=0.0) == (0.0, 1.0)


def test_evidence_that_just_reaches_the_alarm_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = fed(0.05, np.ones(1)).log_evidence
    for alarm, fires in ((reached, True), (math.nextafter(reached, 9), False)):
        monkeypatch.setattr("model_store.decision.error_watch.ALARM", alarm)
        assert fed(0.05, np.ones(1)).alarmed is fires


@pytest.mark.parametrize(("n", "n_wrong"), [(1, 1), (20, 1), (300, 40), (5000, 2)])
def test_the_interval_is_as_narrow_as_its_steps_allow(n: int, n_wrong: int) -> None:
    """The bounds are rejected, 0 and 1 excepted, and a step inwards nothing is."""
    mixed = betaln(n_wrong + 0.5, n - n_wrong + 0.5) - betaln(0.5, 0.5) + math.log(0.05)

    def rejected(step: int) -> bool:
        return bool(mixed > binom_log(step / 1e9))

    def binom_log(rate: float) -> float:
        return float(xlogy(n_wrong, rate) + xlog1py(n - n_wrong, -rate))

    lower, upper = (round(bound * 1e9) for bound in error_interval(n, n_wrong))
    assert rejected(lower)
    assert not rejected(lower + 1)
    if upper < 10**9:
        assert rejected(upper)
        assert not rejected(upper - 1)
