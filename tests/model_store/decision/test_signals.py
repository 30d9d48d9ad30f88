from __future__ import annotations

import math

import numpy as np
import pytest

from model_store.decision import SIGNALS, labels_found, signals

SIMILARITIES = np.array([[0.9, 0.85, 0.8, 0.5], [0.7, 0.7, 0.1, 0.0]])
LABELS = np.array([[1, 1, 2, 1], [3, 4, 4, 4]], dtype=np.int32)
MEANS = np.array([[0.6, 0.6, 0.75, 0.6], [0.3, 0.5, 0.5, 0.5]])
"""Of labels 1 and 2 for the one query, 3 and 4 for the other."""
RANKS = np.array([[0, 2], [0, 2]])
UNCERTAINTIES, OUTLIER_SCORES = np.array([0.2, 0.4]), np.array([3.0, 5.0])


def by_hand(query: int, rank: int) -> dict[str, float]:
    """The definitions, one at a time."""
    similarities, labels = SIMILARITIES[query], LABELS[query]
    label = labels[rank]
    distance = [math.log(1 - s + 1e-4) for s in similarities]
    others = [d for d, other in zip(distance, labels, strict=True) if other != label]
    agreeing = int((labels == label).sum())

    def share(bandwidth: float, added: float | None = None) -> float:
        weights = [math.exp((s - similarities[0]) / bandwidth) for s in similarities]
        mine = sum(w for w, other in zip(weights, labels, strict=True) if other == label)
        more = 0.001 * sum(weights) if added is None else added
        return math.log((mine + more) / (sum(weights) - mine + more))

    span = similarities[0] - similarities[-1]
    means = dict(zip(labels.tolist(), MEANS[query].tolist(), strict=True))
    rival = max([mean for other, mean in means.items() if other != label])
    width = 0.2 * (max(means.values()) - min(means.values()))
    votes = {other: math.exp((mean - max(means.values())) / width) for other, mean in means.items()}
    more = 0.001 * sum(votes.values())
    against = sum(votes.values()) - votes[int(label)]
    return {
        "log_distance": distance[rank],
        "log_distance_ratio": min([*others, distance[-1]]) - distance[rank],
        "agreement_10": math.log((agreeing + 0.5) / (4 - agreeing + 0.5)),
        "agreement_50": math.log((agreeing + 0.5) / (4 - agreeing + 0.5)),
        "weighted_agreement": share(0.02, added=0.5),
        "narrow_agreement": share(0.1 * span),
        "wide_agreement": share(0.4 * span),
        "mean_margin": means[int(label)] - rival,
        "mean_agreement": math.log((votes[int(label)] + more) / (against + more)),
        "log_distance_50": distance[-1],
        "log_uncertainty": math.log(UNCERTAINTIES[query]),
        "outlier_score": OUTLIER_SCORES[query],
    }


def test_agrees_with_the_definitions() -> None:
    values = signals(SIMILARITIES, LABELS, MEANS, UNCERTAINTIES, OUTLIER_SCORES, RANKS)
    for query in range(2):
        for place, rank in enumerate(RANKS[query]):
            expected = by_hand(query, rank)
            assert list(expected) == list(SIGNALS)
            np.testing.assert_allclose(values[query, place], list(expected.values()), rtol=1e-9)


def test_an_item_without_a_label_agrees_with_itself_alone() -> None:
    none = np.full((1, 4), -1, dtype=np.int32)
    values = signals(SIMILARITIES[:1], none, SIMILARITIES[:1], np.ones(1), np.ones(1), RANKS[:1])
    column = SIGNALS.index("agreement_10")
    np.testing.assert_allclose(values[0, :, column], math.log(1.5 / 3.5))


def test_an_item_without_a_label_is_its_own_mean() -> None:
    none = np.full((1, 4), -1, dtype=np.int32)
    values = signals(SIMILARITIES[:1], none, SIMILARITIES[:1], np.ones(1), np.ones(1), RANKS[:1])
    margins = values[0, :, SIGNALS.index("mean_margin")]
    np.testing.assert_allclose(margins, [0.9 - 0.85, 0.8 - 0.9])


def test_a_mean_without_a_rival_is_compared_with_the_last_candidate() -> None:
    labels, means = np.zeros((1, 4), dtype=np.int32), np.full((1, 4), 0.7)
    values = signals(SIMILARITIES[:1], labels, means, np.ones(1), np.ones(1), RANKS[:1])
    np.testing.assert_allclose(values[0, :, SIGNALS.index("mean_margin")], 0.7 - 0.5)


def test_lists_do_not_change_each_other() -> None:
    """To the last bit: the service asks one at a time what calibration asked at once."""
    generator = np.random.default_rng(0)
    similarities = -np.sort(-generator.uniform(-1, 1, (5, 60)), axis=1)
    labels = generator.integers(-1, 6, (5, 60), dtype=np.int32)
    means, ranks = generator.uniform(-1, 1, (5, 60)), np.tile(np.arange(60), (5, 1))
    rest = generator.uniform(0.1, 1, (2, 5))
    together = signals(similarities, labels, means, *rest, ranks)
    for row in range(5):
        one = slice(row, row + 1)
        alone = signals(similarities[one], labels[one], means[one], *rest[:, one], ranks[one])
        np.testing.assert_array_equal(alone[0], together[row])


@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_extremes_stay_finite(value: float) -> None:
    ones, none = np.ones((1, 3)), np.array([value])
    labels = np.array([[0, 0, 1]], dtype=np.int32)
    ranks = np.array([[0, 1, 2]])
    assert np.isfinite(signals(ones, labels, ones, none, none, ranks)).all()


def test_places_may_differ_from_query_to_query() -> None:
    ranks = np.array([[0, 2], [3, 1]])
    values = signals(SIMILARITIES, LABELS, MEANS, UNCERTAINTIES, OUTLIER_SCORES, ranks)
    np.testing.assert_allclose(values[1, 0], list(by_hand(1, 3).values()), rtol=1e-9)


def test_the_nearest_item_of_each_label_and_whose_the_others_are() -> None:
    codes = np.array([4, 4, -1, 2, -1, 4, 2, 7], dtype=np.int32)
    places, members = labels_found(codes)
    np.testing.assert_array_equal(places, [0, 2, 3, 4, 7])
    np.testing.assert_array_equal(members, [0, 0, 1, 2, 3, 0, 2, 4])
