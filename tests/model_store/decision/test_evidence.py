"""Evidence of calibration queries: what it is made of, and how far they say the same."""

from __future__ import annotations

import numpy as np
import pytest

from model_store.decision import Evidence
from model_store.decision.evidence import (
    SIZE_CLASSES,
    LevelEvidence,
    size_classes,
)
from tests.support.calibration_evidence import evidence


def test_arrays_of_several_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="wanted arrays of one length"):
        evidence(10, 10, sources=np.zeros(19, dtype=np.int16))


def test_a_label_is_of_the_class_that_its_number_of_items_says() -> None:
    counts = np.array([0, 1, 2, 5, 6, 1000])
    assert [SIZE_CLASSES[place] for place in size_classes(counts)] == [
        "one",
        "one",
        "few",
        "few",
        "many",
        "many",
    ]


def test_of_another_kind_of_absence_there_is_no_evidence() -> None:
    with pytest.raises(ValueError, match="absence='unheard_of'; wanted one of"):
        evidence(10, 10, absence="unheard_of")


def with_levels() -> Evidence:
    generator = np.random.default_rng(0)
    levels = LevelEvidence(generator.uniform(size=(20, 2)), generator.uniform(size=(20, 2)) < 0.5)
    sources = np.arange(20, dtype=np.int16) % 3
    likeliest = generator.uniform(size=20) < 0.5
    return evidence(
        10,
        10,
        levels=levels,
        sources=sources,
        source_names=["a", "b", "c"],
        likeliest_probabilities=generator.uniform(size=20),
        likeliest_correct=likeliest,
        likeliest_classes=sources.astype(np.int8),
    )


def test_the_evidence_of_a_source_is_all_that_there_is_of_its_queries() -> None:
    whole = with_levels()
    part, rows = whole.of_source("b"), whole.sources == 1
    arrays = [name for name, value in vars(whole).items() if isinstance(value, np.ndarray)]
    assert len(arrays) == 12
    for name in arrays:
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[rows], name)
    assert whole.levels is not None
    assert part.levels is not None
    np.testing.assert_array_equal(part.levels.probabilities, whole.levels.probabilities[rows])
    np.testing.assert_array_equal(part.levels.correct, whole.levels.correct[rows])


def test_the_evidence_of_lists_by_probability_is_of_the_likeliest() -> None:
    whole = with_levels()
    assert whole.of_order("similarity") is whole
    ordered = whole.of_order("probability")
    for of_first, of_likeliest in (
        (ordered.first_probabilities, whole.likeliest_probabilities),
        (ordered.correct, whole.likeliest_correct),
        (ordered.first_classes, whole.likeliest_classes),
    ):
        np.testing.assert_array_equal(of_first, of_likeliest)


@pytest.mark.parametrize("level", [0, 1])
def test_the_evidence_of_a_level_is_of_its_likeliest_parents(level: int) -> None:
    """An absent query may have the right parent: nothing that is wrong, and no match either."""
    whole = with_levels()
    assert whole.levels is not None
    of_level, right = whole.of_level(level), whole.levels.correct[:, level]
    told = np.where(whole.absent & right, 0.0, whole.levels.probabilities[:, level])
    np.testing.assert_array_equal(of_level.first_probabilities, told)
    np.testing.assert_array_equal(of_level.correct, right & ~whole.absent)
    np.testing.assert_array_equal(of_level.first_classes, whole.likeliest_classes)


def test_one_query_of_each_object_counts_and_none_without_a_match() -> None:
    clusters = np.r_[np.arange(12) // 3, 90, 90]
    of = evidence(12, 2, clusters=clusters)
    assert of.counted.sum() == 4
    assert not of.counted[of.absent].any()
    assert sorted(clusters[of.counted].tolist()) == [0, 1, 2, 3]


def test_without_levels_there_is_none_of_a_level() -> None:
    with pytest.raises(ValueError, match="no levels"):
        evidence(10, 10).of_level(0)
