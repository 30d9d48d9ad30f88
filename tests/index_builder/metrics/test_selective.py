from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from index_builder.metrics import augrc, aurc, ausc, risk_coverage, sparsification


def test_the_most_uncertain_go_first() -> None:
    uncertainties = np.arange(100.0)
    correct = uncertainties < 50
    shares, accuracies = sparsification(uncertainties, correct)
    assert (shares[0], accuracies[0]) == (0.0, 0.5)
    assert (shares[25], accuracies[25]) == (0.25, pytest.approx(50 / 75))
    assert (shares[98], accuracies[98]) == (0.98, 1.0)


def test_ausc_is_that_of_a_loop_over_the_remaining_queries() -> None:
    generator = np.random.default_rng(0)
    uncertainties, correct = generator.normal(size=237), generator.random(237) < 0.7
    order = np.argsort(uncertainties)
    kept = [order[: 237 - int(share * 237 / 100)] for share in range(99)]
    area = np.trapezoid([correct[rows].mean() for rows in kept], dx=1 / 99)
    assert ausc(uncertainties, correct) == pytest.approx(area)


def test_perfection_is_98_of_99() -> None:
    assert ausc(np.arange(7.0), np.ones(7, dtype=bool)) == pytest.approx(98 / 99)


def test_risk_at_each_coverage() -> None:
    coverages, risks = risk_coverage(np.array([0.3, 0.1, 0.2]), np.array([False, True, False]))
    assert coverages.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert risks.tolist() == pytest.approx([0, 1 / 2, 2 / 3])


def test_ties_count_as_in_random_order() -> None:
    uncertainties = np.array([0, 1, 1, 1, 2.0])
    correct = np.array([True, False, True, True, False])
    areas = []
    for middle in permutations([1, 2, 3]):
        ranked = correct[[0, *middle, 4]]
        areas.append(np.mean(1 - np.cumsum(ranked) / np.arange(1, 6)))
    assert aurc(uncertainties, correct) == pytest.approx(np.mean(areas))


def test_the_order_of_storage_does_not_matter() -> None:
    generator = np.random.default_rng(1)
    uncertainties, correct = generator.integers(0, 4, 50).astype(float), generator.random(50) < 0.5
    shuffled = generator.permutation(50)
    assert ausc(uncertainties, correct) == ausc(uncertainties[shuffled], correct[shuffled])


def test_a_single_query_is_right_or_wrong() -> None:
    assert aurc(np.array([0.4]), np.array([True])) == 0.0
    assert aurc(np.array([0.4]), np.array([False])) == 1.0


@pytest.mark.parametrize("values", [[], [np.nan, 1.0]])
def test_no_number_cannot_be_ranked(values: list[float]) -> None:
    with pytest.raises(ValueError, match="NaN"):
        aurc(np.array(values), np.ones(len(values), dtype=bool))


def test_generalised_risk_counts_each_error_once_for_each_query_that_is_less_sure() -> None:
    generator = np.random.default_rng(3)
    uncertainties, correct = generator.normal(size=83), generator.random(83) < 0.6
    order = np.argsort(uncertainties)
    wrong = [int((~correct[order[:n]]).sum()) / 83 for n in range(1, 84)]
    assert augrc(uncertainties, correct) == pytest.approx(np.mean(wrong))
    assert augrc(np.array([1.0, 2.0]), np.array([True, False])) == pytest.approx(0.25)
