from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_builder.metrics import auroc, expected_calibration_error, recall_at_k, reliability


def test_unanimous_and_wrong_is_the_worst() -> None:
    assert expected_calibration_error(np.ones(10), np.zeros(10, dtype=bool)) == 1.0


def test_unanimous_and_right_is_the_best() -> None:
    assert expected_calibration_error(np.ones(10), np.ones(10, dtype=bool)) == 0.0


def test_a_worked_case() -> None:
    probabilities = np.array([0.9, 0.2, 0.8, 0.1])
    outcomes = np.array([True, False, False, False])
    # Two bins: {0.1, 0.2} none right, {0.8, 0.9} half right.
    expected = (2 * abs(0 - 0.15) + 2 * abs(0.5 - 0.85)) / 4
    assert expected_calibration_error(probabilities, outcomes, 2) == pytest.approx(expected)


def test_the_diagram_holds_every_prediction_once() -> None:
    probabilities = np.array([0.9, 0.2, 0.8, 0.1, 1.0])
    bins = reliability(probabilities, np.array([True, False, False, False, True]), 2)
    assert [one.n for one in bins] == [3, 2]
    assert [one.share for one in bins] == [0, 1]
    assert [one.probability for one in bins] == pytest.approx([1.1 / 3, 0.95])


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40))
def test_it_lies_between_the_overall_gap_and_one(pairs: list[tuple[float, bool]]) -> None:
    probabilities, outcomes = np.array([p for p, _ in pairs]), np.array([o for _, o in pairs])
    error = expected_calibration_error(probabilities, outcomes, 5)
    assert abs(probabilities.mean() - outcomes.mean()) - 1e-9 <= error <= 1 + 1e-9


def test_auroc_counts_pairs_and_halves_ties() -> None:
    generator = np.random.default_rng(0)
    positives, negatives = generator.integers(0, 6, 23) + 1.0, generator.integers(0, 6, 31) + 0.0
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    assert auroc(positives, negatives) == pytest.approx(wins / (23 * 31))


def test_auroc_of_nothing_is_not_defined() -> None:
    assert auroc(np.array([]), np.array([1.0])) is None


def test_recall_looks_at_the_first_k() -> None:
    matches = np.array([[False, True, False], [False, False, False], [True, False, True]])
    assert recall_at_k(matches, 1) == pytest.approx(1 / 3)
    assert recall_at_k(matches, 2) == pytest.approx(2 / 3)
