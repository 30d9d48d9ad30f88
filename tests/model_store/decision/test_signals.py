from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from model_store.decision import SIGNALS, labels_found, signals

SIMILARITIES = np.array([[0.9, 0.85, 0.8, 0.5], [0.7, 0.7, 0.1, 0.0]])
LABELS = np.array([[1, 1, 2, 1], [3, 4, 4, 4]], dtype=np.int32)
MEANS = np.array([[0.6, 0.6, 0.75, 0.6], [0.3, 0.5, 0.5, 0.5]])
"""Of labels 1 and 2 for the one query, 3 and 4 for the other."""
OUTLIER_SCORES = np.array([3.0, 5.0])


def by_hand(query: int, rank: int) -> dict[str, float]:
    """The definitions, one at a time."""
    similarities, labels = SIMILARITIES[query], LABELS[query]
    label = labels[rank]
    distance = [math.log(1 - s + 1e-4) for s in similarities]
    others = [d for d, other in zip(distance, labels, strict=True) if other != label]

    means = dict(zip(labels.tolist(), MEANS[query].tolist(), strict=True))
    rival = max([mean for other, mean in means.items() if other != label])
    width = 0.2 * (max(means.values()) - min(means.values()))
    votes = {other: math.exp((mean - max(means.values())) / width) for other, mean in means.items()}
    more = 0.001 * sum(votes.values())
    against = sum(votes.values()) - votes[int(label)]
    return {
        "log_distance": distance[rank],
        "outlier_score": OUTLIER_SCORES[query],
        "log_distance_ratio": min([*others, distance[-1]]) - distance[rank],
        "mean_margin": means[int(label)] - rival,
        "mean_agreement": math.log((votes[int(label)] + more) / (against + more)),
        "log_distance_50": distance[-1],
    }


def of_labels(query: int) -> NDArray[np.float64]:
    places, _ = labels_found(LABELS[query])
    return signals(
        SIMILARITIES[query],
        places,
        MEANS[query, places],
        OUTLIER_SCORES[query],
    )


@pytest.mark.parametrize("query", [0, 1])
def test_agrees_with_the_definitions(query: int) -> None:
    places, _ = labels_found(LABELS[query])
    for values, place in zip(of_labels(query), places, strict=True):
        expected = by_hand(query, place)
        assert list(expected) == list(SIGNALS)
        np.testing.assert_allclose(values, list(expected.values()), rtol=1e-9)


def test_the_50th_is_that_and_no_other() -> None:
    similarities = np.linspace(0.9, 0.3, 60)
    places, _ = labels_found(np.repeat([0, 1, 0], [3, 37, 20]).astype(np.int32))
    (nearest, _) = signals(similarities, places, np.array([0.5, 0.4]), 1.0)
    expected = math.log(1 - similarities[49] + 1e-4)
    assert nearest[SIGNALS.index("log_distance_50")] == pytest.approx(expected)


def test_an_item_without_a_label_is_its_own_mean() -> None:
    places, _ = labels_found(np.full(4, -1, dtype=np.int32))
    values = signals(SIMILARITIES[0], places, SIMILARITIES[0], 1.0)
    margins = values[:, SIGNALS.index("mean_margin")]
    np.testing.assert_allclose(margins, [0.9 - 0.85, 0.85 - 0.9, 0.8 - 0.9, 0.5 - 0.9])


def test_one_label_is_compared_with_the_last_candidate() -> None:
    places, _ = labels_found(np.zeros(4, dtype=np.int32))
    (values,) = signals(SIMILARITIES[0], places, np.array([0.7]), 1.0)
    assert values[SIGNALS.index("mean_margin")] == pytest.approx(0.7 - 0.5)
    ratio = math.log(0.5 + 1e-4) - math.log(0.1 + 1e-4)
    assert values[SIGNALS.index("log_distance_ratio")] == pytest.approx(ratio)


def test_a_list_of_one_item() -> None:
    places, _ = labels_found(np.array([3], dtype=np.int32))
    values = signals(np.array([0.5]), places, np.array([0.6]), 1.0)
    assert values.shape == (1, len(SIGNALS))
    assert np.isfinite(values).all()


@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_extremes_stay_finite(value: float) -> None:
    places, _ = labels_found(np.array([0, 0, 1], dtype=np.int32))
    values = signals(np.ones(3), places, np.ones(2), value)
    assert np.isfinite(values).all()


def test_the_nearest_item_of_each_label_and_whose_the_others_are() -> None:
    codes = np.array([4, 4, -1, 2, -1, 4, 2, 7], dtype=np.int32)
    places, belong = labels_found(codes)
    np.testing.assert_array_equal(places, [0, 2, 3, 4, 7])
    np.testing.assert_array_equal(belong.argmax(axis=0), [0, 0, 1, 2, 3, 0, 2, 4])
    assert (belong.sum(axis=0) == 1).all()


@pytest.mark.parametrize("seed", range(10))
def test_labels_are_found_as_by_looking_at_each_item(seed: int) -> None:
    """Label 0 is one as any other, and -1 is none."""
    codes = np.random.default_rng(seed).integers(-1, 3, 8).astype(np.int32)
    places, belong = labels_found(codes)
    first = [i for i, code in enumerate(codes) if code < 0 or code not in codes[:i]]
    assert places.tolist() == first
    for place, row in zip(first, belong, strict=True):
        alone = codes[place] < 0
        assert row.tolist() == [
            i == place if alone else c == codes[place] for i, c in enumerate(codes)
        ]


def test_a_label_beyond_the_list_is_compared_with_the_nearest_in_it() -> None:
    """Its mean may be nearer than any in the list, whose nearest is compared with the second."""
    places, _ = labels_found(np.array([0, 1, 2], dtype=np.int32))
    similarities, means = np.array([0.9, 0.8, 0.1]), np.array([0.5, 0.4, 0.9])
    values = signals(similarities, places, means, 1.0, n_listed=2)
    margins = values[:, SIGNALS.index("mean_margin")]
    assert margins.tolist() == pytest.approx([0.1, -0.1, 0.4])


@pytest.mark.parametrize("n_listed", [1, 2, 3, 5, 6])
def test_what_is_beyond_the_list_changes_no_signal_in_it(n_listed: int) -> None:
    similarities = np.array([0.9, 0.85, 0.8, 0.5, 0.4, 0.3])
    codes = np.array([1, 2, 1, 3, 2, 4], dtype=np.int32)
    means = np.array([0.6, 0.75, 0.6, 0.5, 0.75, 0.2])

    def of_first(n: int) -> NDArray[np.float64]:
        places, _ = labels_found(codes[:n])
        return signals(similarities[:n], places, means[places], 3.0, n_listed)

    alone = of_first(n_listed)
    np.testing.assert_allclose(of_first(6)[: len(alone)], alone)
