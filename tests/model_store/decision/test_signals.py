from __future__ import annotations

import math

import numpy as np
import pytest

from model_store.decision import SIGNALS, signals
from model_store.decision.signals import first_of_each_label

SIMILARITIES = np.array([[0.9, 0.85, 0.8, 0.5], [0.7, 0.7, 0.1, 0.0]])
LABELS = np.array([[1, 1, 2, 1], [3, 4, 4, 4]], dtype=np.int32)
RANKS = np.array([[0, 2], [0, 2]])


def by_hand(query: int, rank: int) -> dict[str, float]:
    """The definitions, one at a time."""
    similarities, labels = SIMILARITIES[query], LABELS[query]
    label = labels[rank]
    distance = [math.log(1 - s + 1e-4) for s in similarities]
    others = [d for d, other in zip(distance, labels, strict=True) if other != label]
    agreeing = int((labels == label).sum())
    weights = [math.exp((s - similarities[0]) / 0.02) for s in similarities]
    weight = sum(w for w, other in zip(weights, labels, strict=True) if other == label)
    return {
        "log_distance": distance[rank],
        "log_distance_ratio": min([*others, distance[-1]]) - distance[rank],
        "agreement_10": math.log((agreeing + 0.5) / (4 - agreeing + 0.5)),
        "agreement_50": math.log((agreeing + 0.5) / (4 - agreeing + 0.5)),
        "weighted_agreement": math.log((weight + 0.5) / (sum(weights) - weight + 0.5)),
        "log_distance_50": distance[-1],
        "log_uncertainty": math.log([0.2, 0.4][query]),
        "outlier_score": [3.0, 5.0][query],
    }


def test_agrees_with_the_definitions() -> None:
    values = signals(SIMILARITIES, LABELS, np.array([0.2, 0.4]), np.array([3.0, 5.0]), RANKS)
    for query in range(2):
        for place, rank in enumerate(RANKS[query]):
            expected = by_hand(query, rank)
            assert list(expected) == list(SIGNALS)
            np.testing.assert_allclose(values[query, place], list(expected.values()), rtol=1e-9)


def test_an_item_without_a_label_agrees_with_itself_alone() -> None:
    none = np.full((1, 4), -1, dtype=np.int32)
    values = signals(SIMILARITIES[:1], none, np.array([0.2]), np.array([3.0]), RANKS[:1])
    column = SIGNALS.index("agreement_10")
    np.testing.assert_allclose(values[0, :, column], math.log(1.5 / 3.5))


@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_extremes_stay_finite(value: float) -> None:
    ones = np.ones((1, 3))
    labels = np.zeros((1, 3), dtype=np.int32)
    ranks = np.array([[0, 1, 2]])
    assert np.isfinite(signals(ones, labels, np.array([value]), np.array([value]), ranks)).all()


def test_places_may_differ_from_query_to_query() -> None:
    ranks = np.array([[0, 2], [3, 1]])
    values = signals(SIMILARITIES, LABELS, np.array([0.2, 0.4]), np.array([3.0, 5.0]), ranks)
    np.testing.assert_allclose(values[1, 0], list(by_hand(1, 3).values()), rtol=1e-9)


def test_the_nearest_item_of_each_label() -> None:
    codes = np.array([4, 4, -1, 2, -1, 4, 2, 7], dtype=np.int32)
    np.testing.assert_array_equal(first_of_each_label(codes, 9), [0, 2, 3, 4, 7])
    np.testing.assert_array_equal(first_of_each_label(codes, 3), [0, 2, 3])
