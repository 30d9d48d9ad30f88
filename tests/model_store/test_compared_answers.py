"""What two bundles say of the same queries, counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from model_store.answers import ComparedAnswers, Said, reason_of_change

MATCH = Said("match", "a1", "a", 0.9, outlier=False, lacking=False)


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (MATCH, None),
        (replace(MATCH, item_id="a2", probability=0.8), None),  # of the same label
        (replace(MATCH, outlier=True, verdict="out_of_distribution", name="b"), "outlier"),
        (replace(MATCH, outlier=None), None),
        (replace(MATCH, name="b"), "first_item"),
        (replace(MATCH, outlier=None, name="b"), "first_item"),  # the flag changed no verdict
        (replace(MATCH, name="b", verdict="ambiguous", lacking=True), "first_item"),
        (replace(MATCH, verdict="ambiguous", lacking=True), "promise"),
        (replace(MATCH, verdict="ambiguous", probability=0.6), "probability"),
        (replace(MATCH, item_id=None, name=None, probability=None), "first_item"),
    ],
)
def test_an_answer_changes_by_the_first_reason(new: Said, reason: str | None) -> None:
    assert reason_of_change(MATCH, new) == reason
    assert reason_of_change(new, MATCH) == reason
    counted = ComparedAnswers()
    assert counted.add(MATCH, new) == reason
    assert counted.n_changed == (reason is not None)
    assert counted.n_same_first == (new.item_id == "a1")
    assert counted.verdicts == {("match", new.verdict): 1}
    assert counted.outliers == {(False, new.outlier): 1}


def test_the_mean_change_of_probability_lies_in_its_interval_as_often_as_promised() -> None:
    generator = np.random.default_rng(0)
    missed, widths = 0, []
    for _ in range(200):
        counted = ComparedAnswers()
        old, new = generator.random(100), generator.beta(8, 2, 100)
        for one, other in zip(old, new, strict=True):
            counted.add(replace(MATCH, probability=one), replace(MATCH, probability=other))
        low, high = counted.probability_interval()
        mean = counted.probability_change
        assert mean == pytest.approx(np.mean(new - old))
        missed += not low <= 0.8 - 0.5 <= high
        widths.append(high - low)
    assert missed / 200 <= 0.05
    assert np.mean(widths) < 1


def test_of_nothing_nothing_is_known() -> None:
    counted = ComparedAnswers()
    assert (counted.probability_change, counted.probability_interval()) == (None, (-1.0, 1.0))
    counted.add(MATCH, replace(MATCH, probability=None))
    assert counted.n_probabilities == 0
