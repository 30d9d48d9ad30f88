from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mode
from sklearn.metrics import brier_score_loss

from index_builder.metrics import (
    Bools,
    Floats,
    brier,
    calibration_error,
    calibration_spread,
    consensus,
    evened,
    reliability,
    reliability_by_width,
    retrieval_calibration_error,
)


def expected_calibration_error(probabilities: Floats, outcomes: Bools, n_bins: int = 15) -> float:
    return calibration_error(reliability(probabilities, outcomes, n_bins))


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


def test_equal_probabilities_have_no_order() -> None:
    """Right in nine of ten, as it says: whatever comes first, the error is 0."""
    probabilities, outcomes = np.full(1000, 0.9), np.arange(1000) < 900
    assert expected_calibration_error(probabilities, outcomes) == pytest.approx(0, abs=1e-12)
    generator = np.random.default_rng(0)
    some, weights = generator.integers(0, 4, 200) / 4, generator.integers(1, 3, 200) / 2
    right, order = generator.random(200) < some, generator.permutation(200)
    for of_each in (None, weights):
        bins = reliability(some, right, weights=of_each)
        moved = None if of_each is None else of_each[order]
        again = reliability(some[order], right[order], weights=moved)
        for one, other in zip(bins, again, strict=True):
            assert other.model_dump() == pytest.approx(one.model_dump())


def test_what_is_equal_has_the_mean_outcome_of_its_equals() -> None:
    values, outcomes = np.array([0.2, 0.7, 0.2, 0.7]), np.array([True, True, False, True])
    np.testing.assert_allclose(evened(values, outcomes), [0.5, 1, 0.5, 1])
    np.testing.assert_allclose(
        evened(values, outcomes, np.array([3.0, 1, 1, 2])), [0.75, 1, 0.75, 1]
    )


def test_a_consensus_is_the_mode_and_its_share() -> None:
    votes = np.random.default_rng(0).integers(0, 4, (30, 11))
    modes, confidences = consensus(votes)
    expected = mode(votes, axis=0)
    np.testing.assert_array_equal(modes, expected.mode)
    np.testing.assert_allclose(confidences, expected.count / 30)


def test_of_equally_frequent_labels_the_smallest_is_the_consensus() -> None:
    modes, confidences = consensus(np.array([[3, 0], [1, 0]]))
    assert modes.tolist() == [1, 0]
    assert confidences.tolist() == [0.5, 1.0]


def test_a_consensus_that_is_unanimous_and_wrong_is_the_worst() -> None:
    modes, confidences = consensus(np.zeros((100, 7), dtype=int))
    assert retrieval_calibration_error(confidences, modes == 1) == 1.0
    assert retrieval_calibration_error(confidences, modes == 0) == 0.0


def test_bins_weigh_what_they_hold() -> None:
    confidences = np.array([0.55, 0.58, 0.95, 1.0])
    correct = np.array([True, False, True, True])
    expected = (2 * abs(0.5 - 0.565) + 2 * abs(1 - 0.975)) / 4  # Eq. 111 as printed: 1/2 and 1/2
    assert retrieval_calibration_error(confidences, correct) == pytest.approx(expected)


def test_bins_of_equal_width_agree_with_torchmetrics_below_one() -> None:
    from torchmetrics.functional.classification import binary_calibration_error

    generator = np.random.default_rng(1)
    probabilities, outcomes = generator.uniform(0, 0.999, 400), generator.random(400) < 0.4
    reference = binary_calibration_error(
        torch.from_numpy(probabilities), torch.from_numpy(outcomes.astype(int)), n_bins=10
    )
    assert retrieval_calibration_error(probabilities, outcomes) == pytest.approx(
        reference.item(), abs=1e-6
    )


def test_the_last_bin_holds_certainty() -> None:
    (only,) = reliability_by_width(np.array([0.95, 1.0]), np.array([True, False]))
    assert (only.n, only.share) == (2, 0.5)


def test_brier_agrees_with_scikit_learn() -> None:
    generator = np.random.default_rng(2)
    probabilities, outcomes = generator.uniform(size=60), generator.random(60) < 0.5
    assert brier(probabilities, outcomes) == pytest.approx(
        brier_score_loss(outcomes, probabilities)
    )


@pytest.mark.parametrize("values", [[], [np.nan]])
def test_no_number_has_no_calibration(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        retrieval_calibration_error(np.array(values), np.zeros(len(values), dtype=bool))


def test_few_labels_spread_more_than_their_queries_do() -> None:
    """Probabilities are true on average over labels, of which each is right or wrong as one."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(20), 30)
    right = (generator.uniform(size=20) < 0.7)[labels]
    probabilities, weights = np.full(600, 0.7), np.ones(600)
    together = calibration_spread(probabilities, right, labels, weights)
    apart = calibration_spread(probabilities, right, np.arange(600), weights)
    assert together == pytest.approx((0.7 * 0.3 / 20) ** 0.5 * (2 / np.pi) ** 0.5, rel=0.3)
    assert apart < together / 2


def test_a_bias_that_all_labels_share_is_no_spread() -> None:
    labels, weights = np.arange(400) % 20, np.ones(400)
    assert calibration_spread(np.full(400, 0.9), np.zeros(400, bool), labels, weights) == 0
    bins = reliability(np.full(400, 0.9), np.zeros(400, bool), weights=weights)
    assert calibration_error(bins) == pytest.approx(0.9)
