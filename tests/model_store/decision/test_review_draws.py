"""With which probability answers are drawn for review."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_store.decision import ReviewDraws
from tests.support.calibration_evidence import evidence
from tests.support.certified_bundles import calibration

PROBABILITIES = np.linspace(0.02, 0.98, 400)


def test_probability_is_proportional_to_doubt_above_a_floor() -> None:
    draws = ReviewDraws(0.1, 0.2, 0.4)
    assert draws.least == 0.05
    for p in (0.0, 0.3, 0.9, 1.0):
        doubt = (p * (1 - p)) ** 0.5
        assert draws.probability(p, is_match=True) == pytest.approx(0.05 + 0.05 * doubt / 0.2)
        assert draws.probability(p, is_match=False) == pytest.approx(0.05 + 0.05 * doubt / 0.4)
    assert draws.probability(None, is_match=False) == 0.05


@pytest.mark.parametrize(
    ("probability", "predicted"), [(0.05, 0.25), (0.06, 0.3), (0.08, 0.4), (0.1, 0.4), (1.0, 0.4)]
)
def test_predicted_error_is_limited_by_the_draw_probability(
    probability: float, predicted: float
) -> None:
    draws = ReviewDraws(0.1, 0.2, 0.4)
    assert draws.predicted_error(0.4, probability) == pytest.approx(predicted)


def test_probability_of_a_draw_is_at_most_one() -> None:
    assert ReviewDraws(0.5, 1e-3, 0.4).probability(0.5, is_match=True) == 1


def test_certain_calibration_queries_draw_all_alike() -> None:
    """Their doubt is 0, which no other doubt can be compared with."""
    certain = calibration(evidence(30, 10, first_probabilities=np.ones(40)))
    draws = ReviewDraws.of(certain, 0.1)
    assert draws.probability(0.5, is_match=True) == draws.least


def test_share_of_one_draws_every_answer() -> None:
    draws = ReviewDraws(1.0, 0.2, 0.4)
    assert {draws.probability(p, is_match=True) for p in (None, 0.0, 0.5, 1.0)} == {1.0}


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_expected_share_of_draws_is_that_of_the_calibration_queries(share: float) -> None:
    fitted = calibration(
        evidence(300, 100, first_probabilities=PROBABILITIES, correct=np.arange(400) < 300)
    )
    accepted = fitted.promises().accepted
    first = fitted.evidence.of_order(fitted.order).first_probabilities
    draws = ReviewDraws.of(fitted, share)
    for some, is_match in ((accepted, True), (~accepted, False)):
        drawn = [draws.probability(p, is_match=is_match) for p in first[some]]
        if some.any():
            assert np.mean(drawn) == pytest.approx(share, rel=1e-6)


def test_answers_without_a_calibration_query_are_drawn_as_all_others_are() -> None:
    """No calibration query is a match, so that the doubts of all of them are compared with."""
    fitted = calibration(evidence(30, 10, first_probabilities=np.full(40, 0.3)))
    assert not fitted.promises().accepted.any()
    draws = ReviewDraws.of(fitted, 0.1)
    assert draws.of_matches == draws.of_others == pytest.approx(0.21**0.5)


def test_certain_matches_are_drawn_by_the_doubts_of_all_others() -> None:
    first = np.where(np.arange(600) < 300, 1.0, 0.1)
    fitted = calibration(
        evidence(300, 300, first_probabilities=first, correct=np.arange(600) < 300)
    )
    draws = ReviewDraws.of(fitted, 0.1)
    assert fitted.promises().accepted.any()
    assert (draws.of_matches, draws.of_others) == pytest.approx((0.15, 0.3))


def test_outdated_calibration_draws_all_alike() -> None:
    draws = ReviewDraws.of(replace(calibration(evidence(30, 10)), outdated="old"), 0.1)
    assert draws.probability(0.5, is_match=False) == draws.least
