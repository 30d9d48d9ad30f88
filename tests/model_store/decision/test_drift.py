from __future__ import annotations

import numpy as np
import pytest

from model_store.decision import DriftTest
from model_store.decision.drift import CALM, PERIOD

CALIBRATION = np.random.default_rng(0).standard_normal(500)


def stream(n: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n) + shift


def test_the_capital_is_that_of_the_paper() -> None:
    """Vovk et al. 2021, Algorithm 1, on p-values counted by hand."""
    test = DriftTest(CALIBRATION, seed=3)
    ties = np.random.default_rng(3)
    seen, capitals = list(CALIBRATION), {-1: 1 / 3, 0: 1 / 3, 1: 1 / 3}
    for score in stream(60, 1, shift=0.3):
        seen.append(score)
        larger, equal = sum(s > score for s in seen), sum(s == score for s in seen)
        p_value = (larger + ties.uniform() * equal) / len(seen)
        total = sum(capitals.values())
        capitals = {
            bet: (0.99 * capital + 0.01 * total / 3) * (1 + bet * (p_value - 0.5))
            for bet, capital in capitals.items()
        }
        test.observe(score)
        assert test.log_capital == pytest.approx(np.log(sum(capitals.values())))


def test_a_stream_like_the_calibration_queries_seldom_alarms() -> None:
    alarms = 0
    for seed in range(200):
        scores = np.random.default_rng(seed).standard_normal(400)
        test = DriftTest(scores[:100])
        for score in scores[100:]:
            test.observe(score)
            if test.drifted:
                alarms += 1
                break
    assert alarms <= 8  # 2 expected at most; more than 8 has a probability below 0.001


@pytest.mark.parametrize("shift", [1.0, -1.0])
def test_a_shift_is_noticed_either_way_and_soon(shift: float) -> None:
    test = DriftTest(CALIBRATION)
    for score in stream(1000, 2):
        test.observe(score)
    assert not test.drifted
    needed = 0
    for score in stream(200, 3, shift):
        test.observe(score)
        needed += 1
        if test.drifted:
            break
    assert test.drifted
    assert needed < 120


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
