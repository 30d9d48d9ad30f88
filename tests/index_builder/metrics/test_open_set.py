from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.metrics import (
    detection_and_identification_rate,
    open_set_classification_rate,
    recall_at_k,
)

Floats = NDArray[np.float64]


def by_all_thresholds(
    confidences: Floats, correct: NDArray[np.bool_], strangers: Floats, rate: float
) -> float:
    return max(
        float((correct & (confidences > threshold)).mean())
        for threshold in [-np.inf, *confidences, *strangers]
        if (strangers > threshold).mean() <= rate
    )


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.25, 1.0])
def test_it_is_the_best_that_any_threshold_reaches(rate: float) -> None:
    for seed in range(10):
        generator = np.random.default_rng(seed)
        confidences, correct = generator.integers(2, 9, 40) / 10, generator.random(40) < 0.8
        strangers = generator.integers(0, 7, 30) / 10
        value = detection_and_identification_rate(confidences, correct, strangers, rate)
        assert value == pytest.approx(by_all_thresholds(confidences, correct, strangers, rate))


def test_with_every_alarm_allowed_it_is_recall_at_one() -> None:
    correct = np.array([True, False, True])
    value = detection_and_identification_rate(
        np.array([0.1, 0.9, 0.0]), correct, np.array([0.5]), 1.0
    )
    assert value == recall_at_k(correct[:, None], 1)


def test_strangers_as_sure_as_everyone_leave_nothing() -> None:
    same = np.ones(4)
    assert detection_and_identification_rate(same, same > 0, same, 0.5) == 0.0


def test_without_strangers_there_is_no_rate() -> None:
    assert detection_and_identification_rate(np.ones(1), np.ones(1, bool), np.ones(0), 0.1) is None


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        detection_and_identification_rate(np.array([np.nan]), np.ones(1, bool), np.ones(1), 0.1)


def test_oscr_is_the_area_under_its_curve() -> None:
    generator = np.random.default_rng(2)
    known, strangers = generator.normal(1, 1, 60).round(1), generator.normal(0, 1, 41).round(1)
    correct = generator.random(60) < 0.7
    thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([known, strangers]))[::-1]])
    accepted = [float((strangers >= t).mean()) for t in thresholds]
    answered = [float((correct & (known >= t)).mean()) for t in thresholds]
    area = np.trapezoid(answered, accepted)
    assert open_set_classification_rate(known, correct, strangers) == pytest.approx(area)


def test_oscr_of_nobody_is_undefined() -> None:
    nobody = np.empty(0)
    assert open_set_classification_rate(nobody, nobody.astype(bool), np.ones(2)) is None
    assert open_set_classification_rate(np.ones(2), np.ones(2, dtype=bool), nobody) is None
    with pytest.raises(ValueError, match="NaN"):
        open_set_classification_rate(np.array([np.nan]), np.ones(1, dtype=bool), np.ones(2))
