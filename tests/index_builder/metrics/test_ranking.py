from __future__ import annotations

import numpy as np
import pytest
import torch

from index_builder.metrics import average_precision, map_at_k, map_at_r, recall_at_k


@pytest.fixture
def matches() -> np.ndarray:
    return np.random.default_rng(0).random((9, 14)) < 0.3


def in_order(row: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(len(row), 0, -1).float(), torch.from_numpy(row)


def test_recall_looks_at_the_first_k() -> None:
    matches = np.array([[False, True, False], [False, False, False], [True, False, True]])
    assert recall_at_k(matches, 1) == pytest.approx(1 / 3)
    assert recall_at_k(matches, 2) == pytest.approx(2 / 3)


def test_recall_agrees_with_torchmetrics(matches: np.ndarray) -> None:
    from torchmetrics.functional.retrieval import retrieval_hit_rate

    rates = [retrieval_hit_rate(*in_order(row), top_k=3).item() for row in matches]
    assert recall_at_k(matches, 3) == pytest.approx(np.mean(rates))


def test_average_precision_agrees_with_torchmetrics(matches: np.ndarray) -> None:
    from torchmetrics.functional.retrieval import retrieval_average_precision

    expected = [retrieval_average_precision(*in_order(row)).item() for row in matches if row.any()]
    assert average_precision(matches) == pytest.approx(np.mean(expected), abs=1e-6)


def test_the_exercise_of_the_slides() -> None:
    # The positives in places 1 and 3: precisions 1 and 2/3.
    assert average_precision(np.array([[True, False, True, False]])) == pytest.approx(5 / 6)


def test_map_at_k_divides_by_what_could_be_found() -> None:
    matches = np.array([[True, False, True], [False, True, False]])
    n_relevant = np.array([5, 1])
    assert map_at_k(matches, n_relevant, 3) == pytest.approx(((1 + 2 / 3) / 3 + 1 / 2) / 2)
    assert map_at_k(matches, n_relevant, 2) == pytest.approx((1 / 2 + 1 / 2) / 2)


def test_map_at_r_stops_at_r() -> None:
    matches = np.array([[True, False, True, True], [True, True, False, False]])
    assert map_at_r(matches, np.array([2, 4])) == pytest.approx((1 / 2 + 2 / 4) / 2)


def test_map_at_r_is_at_most_r_precision(matches: np.ndarray) -> None:
    from torchmetrics.functional.retrieval import retrieval_r_precision

    n_relevant = matches.sum(axis=1)
    precisions = [retrieval_r_precision(*in_order(row)).item() for row in matches if row.any()]
    value = map_at_r(matches, n_relevant)
    assert value is not None
    assert 0 < value <= np.mean(precisions)


def test_a_query_without_a_match_in_the_gallery_counts_for_nothing() -> None:
    matches = np.array([[True, True], [False, False]])
    n_relevant = np.array([2, 0])
    assert map_at_k(matches, n_relevant, 2) == map_at_r(matches, n_relevant) == 1.0
    assert average_precision(matches) == 1.0
    nothing = np.zeros((2, 3), dtype=bool)
    assert map_at_k(nothing, np.zeros(2, dtype=int), 2) is None
    assert average_precision(nothing) is None


def test_one_item_is_a_list() -> None:
    assert map_at_k(np.array([[True]]), np.array([1]), 5) == 1.0
