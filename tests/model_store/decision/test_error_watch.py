from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from model_store.decision import (
    BlockSums,
    ErrorEstimate,
    ErrorTest,
    MatchDraw,
    MatchReview,
    ReviewDraws,
    estimate_error,
)
from model_store.decision.error_watch import ALARM, MIN_REVIEWS
from tests.support.narrowing import not_none


def fed(max_error: float, wrong: np.ndarray) -> ErrorTest:
    """Feed the test with matches that were all drawn."""
    test = ErrorTest(max_error)
    for one in wrong:
        test.observe(MatchReview(bool(one), MatchDraw(0.1)))
    return test


class World:
    """Matches whose true error is known, and their draws; ``off`` nats are missing in p."""

    def __init__(self, seed: int, n: int, off: float = 0.0, share: float = 0.2) -> None:
        self.generator = np.random.default_rng(seed)
        log_odds = self.generator.normal(5, 4, 8 * n)
        log_odds = log_odds[log_odds > 0.85][:n]
        self.probabilities = expit(log_odds)
        self.error = expit(-log_odds - off)
        self.wrong = self.generator.random(n) < self.error
        doubts = np.sqrt(self.probabilities * (1 - self.probabilities))
        self.draws = ReviewDraws(share, float(doubts.mean()), 1.0)

    def reviews(self, *, alike: bool = False) -> list[MatchReview]:
        """Draw matches, all with one probability if ``alike``, and review them."""
        sums, found = BlockSums(), []
        served = zip(self.probabilities.tolist(), self.wrong.tolist(), strict=True)
        for probability, wrong in served:
            drawn_with, least = self.draws.share, self.draws.share
            if not alike:
                drawn_with = self.draws.probability(probability, is_match=True)
                least = self.draws.least
            predicted = min(1 - probability, drawn_with / (4 * least))
            if self.generator.random() < drawn_with:
                found.append(MatchReview(wrong, sums.close(predicted, drawn_with, least)))
            else:
                sums.add(predicted)
        return found


def fed_with(max_error: float, reviews: list[MatchReview]) -> ErrorTest:
    test = ErrorTest(max_error)
    for one in reviews:
        test.observe(one)
    return test


def answers(n: int, rate: float, seeds: range) -> Iterator[np.ndarray]:
    """Which of n matches are wrong, for each seed."""
    for seed in seeds:
        yield np.random.default_rng(seed).random(n) < rate


def test_error_test_log_evidence_is_product_of_bets_of_every_served_match() -> None:
    """Waudby-Smith & Ramdas 2024: 1 + λ (Z − m), and exp(u − u²) of undrawn matches, one by one."""
    m, least, sizes = 0.05, 0.1, np.array([0, 0.5, 1, 2, 3.5])
    bets = sizes * least / (1 + 4 * m * least)
    generator = np.random.default_rng(2)
    capitals, sums, test = np.full(5, 0.2), BlockSums(), ErrorTest(m)
    block = np.ones(5)
    for _ in range(500):
        f, wrong, drawn = generator.random() / 4, generator.random() < 0.1, generator.random() < 0.3
        if not drawn:
            u = bets * (f - m)
            block *= np.exp(u - u**2)
            assert (np.exp(u - u**2) <= 1 + u).all()
            sums.add(f)
            continue
        block *= 1 + bets * (f + (wrong - f) / 0.3 - m)
        capitals = (0.999 * capitals + 0.001 * capitals.sum() / 5) * block
        block = np.ones(5)
        test.observe(MatchReview(bool(wrong), sums.close(f, 0.3, least)))
    assert test.log_evidence == pytest.approx(np.log(capitals.sum()))


@pytest.mark.parametrize("off", [0.0, -1.0, 1.0])
def test_error_test_with_weighted_draws_seldom_alarms_at_accepted_rate(off: float) -> None:
    alarms = 0
    for seed in range(120):
        world = World(seed, 1500, off)
        alarms += fed_with(float(world.error.mean()), world.reviews()).alarmed
    assert alarms <= binom.ppf(0.999, 120, 0.01)


def test_error_test_with_weighted_draws_needs_no_more_reviews_than_with_even_ones() -> None:
    needed: dict[bool, list[int]] = {False: [], True: []}
    for seed in range(30):
        for alike, found in needed.items():
            world = World(seed, 3000, -1.0)
            test = ErrorTest(float(world.error.mean()) / 2)
            for one in world.reviews(alike=alike):
                test.observe(one)
                if test.alarmed:
                    break
            found.append(test.n if test.alarmed else 10_000)
    assert np.median(needed[False]) < np.median(needed[True]) < 600


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
            wrong = bool(generator.random() < rate)
            test.observe(MatchReview(wrong, MatchDraw(0.1)))
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


def test_evidence_that_just_reaches_the_alarm_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = fed(0.05, np.ones(1)).log_evidence
    for alarm, fires in ((reached, True), (math.nextafter(reached, 9), False)):
        monkeypatch.setattr("model_store.decision.error_watch.ALARM", alarm)
        assert fed(0.05, np.ones(1)).alarmed is fires


@pytest.mark.parametrize("off", [0.0, -1.0])
def test_estimate_error_of_weighted_draws_is_unbiased(off: float) -> None:
    """The mean of many estimates is the truth, though the reviewed are wrong more often."""
    estimates, naive, truth = [], [], []
    for seed in range(300):
        world = World(seed, 1000, off)
        reviews = world.reviews()
        estimates.append(not_none(estimate_error(reviews).rate) - world.wrong.mean())
        naive.append(np.mean([one.wrong for one in reviews]) - world.wrong.mean())
        truth.append(world.wrong.mean())
    standard_error = np.std(estimates) / 300**0.5
    assert abs(np.mean(estimates)) < 4 * standard_error + 0.02 * np.mean(truth)
    assert np.mean(naive) > 0.5 * np.mean(truth)


def test_estimate_error_of_weighted_draws_has_less_variance_than_of_even_ones() -> None:
    spread = {}
    for alike in (False, True):
        found = []
        for seed in range(300):
            world = World(seed, 1000)
            reviews = world.reviews(alike=alike)
            rate = not_none(estimate_error(reviews).rate)
            found.append(len(reviews) * (rate - world.error.mean()) ** 2)
        spread[alike] = np.mean(found)
    assert spread[False] < 0.75 * spread[True]


@pytest.mark.parametrize(("off", "most"), [(0.0, 0.05), (-1.0, 0.1), (-2.0, 0.12)])
def test_estimate_error_interval_holds_the_rate_at_all_times(off: float, most: float) -> None:
    """Its level is asymptotic: with predictions that are far too low a few more are missed."""
    missed = 0
    for seed in range(60):
        world = World(seed, 1200, off)
        reviews, rate = world.reviews(), world.error.mean()
        intervals = [
            estimate_error(reviews[:n]).interval for n in range(MIN_REVIEWS, len(reviews), 12)
        ]
        missed += any(not lower <= rate <= upper for lower, upper in intervals)
    assert missed <= binom.ppf(0.999, 60, most)


@pytest.mark.parametrize("predicted", [0.1, 0.01])
def test_estimate_error_interval_is_that_of_the_asymptotic_sequence(predicted: float) -> None:
    """Theorem 2.2 of Waudby-Smith et al. 2024, of matches that were all drawn."""
    reviews = [MatchReview(n % 10 == 0, MatchDraw(predicted)) for n in range(400)]
    lower, upper = estimate_error(reviews).interval
    rho2 = (-2 * np.log(0.05) + np.log(-2 * np.log(0.05) + 1)) / 200
    t = 400
    half = np.sqrt(0.09) * np.sqrt(
        2 * (t * rho2 + 1) / (t**2 * rho2) * np.log(np.sqrt(t * rho2 + 1) / 0.05)
    )
    assert [lower, upper] == pytest.approx([0.1 - half, 0.1 + half])


def test_estimate_error_of_right_matches_is_no_narrower_than_predictions_allow() -> None:
    reviews = [MatchReview(wrong=False, draw=MatchDraw(0.1)) for _ in range(100)]
    assert estimate_error(reviews).interval[1] > 0.03


def test_estimate_error_without_enough_reviews_bounds_nothing() -> None:
    assert estimate_error([]) == ErrorEstimate(None, (0.0, 1.0))
    few = [MatchReview(wrong=True, draw=MatchDraw(0.1)) for _ in range(MIN_REVIEWS - 1)]
    assert estimate_error(few) == ErrorEstimate(1.0, (0.0, 1.0))
    right = [MatchReview(wrong=False, draw=MatchDraw(0.1))] * MIN_REVIEWS
    assert estimate_error(right).interval[1] < 0.5


@pytest.mark.parametrize("n", [MIN_REVIEWS - 1, MIN_REVIEWS])
@pytest.mark.parametrize(("wrong", "rate"), [(True, 1.0), (False, 0.0)])
def test_estimate_error_lies_between_0_and_1(n: int, wrong: bool, rate: float) -> None:
    """Though a seldom drawn match that was predicted badly counts for more than one."""
    draw = MatchDraw(0.1 if wrong else 0.9, probability=0.2, least=0.1)
    assert draw.corrected(wrong=wrong) > 1 or draw.corrected(wrong=wrong) < 0
    found = estimate_error([MatchReview(wrong, draw)] * n)
    assert found.rate == rate
    assert 0 <= found.interval[0] <= rate <= found.interval[1] <= 1
