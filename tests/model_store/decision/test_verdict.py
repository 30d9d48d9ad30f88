from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit

from model_store.decision import (
    SIGNALS,
    Calibration,
    LabelMeans,
    LogisticModel,
    OperatingCurve,
    OutlierDetector,
    OutlierFusion,
    Recalibration,
    ResultSetRule,
    VennAbers,
    decide,
)
from model_store.encoder import Embeddings
from model_store.errors import BundleMismatch
from model_store.predictive import Predictive
from model_store.search import Neighbours


def logistic(signal: str, weight: float, intercept: float = 0.0) -> LogisticModel:
    """A model that looks at one signal."""
    weights = np.zeros(len(SIGNALS))
    weights[SIGNALS.index(signal)] = weight
    zero, one = np.zeros(len(SIGNALS)), np.ones(len(SIGNALS))
    return LogisticModel(weights, zero, one, intercept)


def calibration() -> Calibration:
    generator = np.random.default_rng(0)

    def array(*shape: int) -> NDArray[np.float32]:
        return generator.standard_normal(shape).astype(np.float32)

    return Calibration(
        "encoder",
        search={"index": "IndexFlatIP"},
        n_queries=9,
        alpha=0.1,
        coverage=0.9,
        match_threshold=0.8,
        operating=OperatingCurve(
            thresholds=np.array([0.9, 0.8, 0.4]),
            coverages=np.array([0.2, 0.5, 1.0]),
            errors=np.array([0.0, 0.04, 0.2]),
            error_bounds=np.array([0.1, 0.12, 0.3]),
        ),
        uncertainties=np.arange(1, 10) / 10,
        outlier_scores=np.arange(1.0, 10.0),
        means=LabelMeans(np.eye(3, 2, dtype=np.float32)),
        detector=OutlierDetector(
            1,
            *(array(*shape) for shape in ((5,), (5, 2), (20, 2), (3, 2), (2, 2))),
            0.5,
            1.0,
            0.3,
            array(20, 4),
        ),
        fusion=OutlierFusion(
            np.full(5, 0.2),
            np.tile([0.0, 1.0], (5, 1)),
            np.tile([0.1, 0.7], (5, 1)),
            np.ones(5),
        ),
        match=logistic("log_distance", -1.0, intercept=-1.0),
        no_match=logistic("log_distance", 1.0, intercept=1.0),
        intervals=VennAbers(
            np.array([-3.0, 0, 3]), np.array([0.1, 0.4, 0.7]), np.array([0.2, 0.6, 1])
        ),
        feedback=Recalibration(),
        sets=ResultSetRule(np.linspace(0, 1, 200)),
        quality_limits={"too_dark": 20.0},
        report={"n_matched": 9},
    )


def query(spherical_variance: float = 0.35, outlier_score: float = 2.5) -> Predictive:
    direction = np.array([1.0, 0.0], dtype=np.float32)
    return Predictive(direction, direction, spherical_variance, outlier_score, direction[None])


def neighbours(*similarities: float) -> Neighbours:
    n = len(similarities)
    return Neighbours(
        np.arange(n), np.array(similarities), np.arange(n), np.ones(n), np.ones(n - 1)
    )


LABELS = np.zeros(3, dtype=np.int32)


def test_without_calibration_nothing_is_invented() -> None:
    decision = decide(None, query(), neighbours(0.9, 0.8, 0.7), LABELS, 3, 0.05, 0.9)
    assert decision.verdict == "not_calibrated"
    assert decision.match_probabilities is None
    assert decision.assessment.outlier_p_value is None
    assert decision.assessment.percentile is None


@pytest.mark.parametrize(
    ("similarity", "outlier_score", "verdict"),
    [
        (0.95, 2.5, "match"),
        (0.80, 2.5, "ambiguous"),
        (0.30, 2.5, "no_match"),
        (0.95, 9.5, "out_of_distribution"),
    ],
)
def test_verdicts(similarity: float, outlier_score: float, verdict: str) -> None:
    found = neighbours(similarity, 0.2, 0.1)
    asked = query(outlier_score=outlier_score)
    assert decide(calibration(), asked, found, LABELS, 3, 0.1, 0.9).verdict == verdict


def test_a_query_whose_outlier_score_is_unknown_gets_no_probability() -> None:
    unknown = query(spherical_variance=0.35, outlier_score=np.nan)
    decision = decide(
        calibration(), unknown, neighbours(0.9, 0.5), np.array([0, 1], np.int32), 2, 0.1, None
    )
    assert decision.verdict == "not_calibrated"
    assert decision.match_probabilities is decision.match_intervals is decision.result_set is None
    assert decision.no_match_probability is decision.assessment.outlier_p_value is None
    assert decision.assessment.percentile == pytest.approx(100 * 3 / 9)


def test_the_p_value_counts_calibration_queries_at_least_as_alien() -> None:
    fitted = calibration()
    for distance, expected in [(0.5, 1.0), (1.0, 1.0), (5.0, 0.6), (5.1, 0.5), (99.0, 0.1)]:
        assert fitted.outlier_p_value(distance) == pytest.approx(expected)


def test_false_alarms_are_at_most_alpha_in_the_long_run() -> None:
    """The conformal guarantee (Vovk et al. 2005), exactly: average over which query is the test."""
    scores = np.random.default_rng(0).standard_normal(20)
    for alpha in (0.05, 0.1, 0.33):
        alarms = 0
        for test in range(20):
            rest = np.sort(np.delete(scores, test))
            alarms += (
                replace(calibration(), outlier_scores=rest).outlier_p_value(scores[test]) <= alpha
            )
        assert alarms / 20 <= alpha


def test_percentile_and_level() -> None:
    fitted = calibration()
    assert fitted.uncertainty_percentile(0.0) == 0
    assert fitted.uncertainty_percentile(0.95) == 100
    assert fitted.uncertainty_percentile(math.nan) == 100
    levels = [
        decide(
            fitted, query(value), neighbours(0.9, 0.8, 0.7), LABELS, 3, 0.1, 0.9
        ).assessment.level
        for value in (0.05, 0.75, 0.95)
    ]
    assert levels == ["low", "medium", "high"]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(-3, 3))
def test_a_closer_item_of_the_same_label_never_has_a_lower_probability(
    values: list[float], weight: float
) -> None:
    fitted = replace(calibration(), match=logistic("log_distance_ratio", weight))
    ordered = sorted(values, reverse=True)
    labels = np.arange(len(values), dtype=np.int32) % 3
    decision = decide(fitted, query(), neighbours(*ordered), labels, 10, 0.1, 0.9)
    probabilities = decision.match_probabilities
    assert probabilities is not None
    assert len(probabilities) == min(10, len(values))
    for code in range(3):
        assert (np.diff(probabilities[labels[: len(probabilities)] == code]) <= 0).all()
    assert (probabilities >= 0).all()
    of_labels = probabilities[np.unique(labels[: len(probabilities)], return_index=True)[1]]
    assert of_labels.sum() <= 1 + 1e-9


def test_a_probability_lies_in_its_interval() -> None:
    labels = np.arange(3, dtype=np.int32)
    decision = decide(calibration(), query(), neighbours(0.95, 0.6, -0.9), labels, 3, 0.1, 0.9)
    assert decision.match_probabilities is not None
    assert decision.match_intervals is not None
    lower, upper = decision.match_intervals.T
    assert (lower <= decision.match_probabilities).all()
    assert (decision.match_probabilities <= upper).all()
    np.testing.assert_allclose(decision.match_intervals[0], [0.4, 1.0])
    np.testing.assert_allclose(decision.match_intervals[2], [0.0, 0.2])


def test_the_result_set_holds_the_nearest_item_of_each_likely_label() -> None:
    found = neighbours(0.9, 0.88, 0.7, 0.2, -1.0)
    labels = np.array([0, 0, 1, 1, 2], dtype=np.int32)
    for coverage, places in ((0.98, [0, 2, 4]), (0.9, [0, 2]), (0.5, [0])):
        chosen = decide(calibration(), query(), found, labels, 1, 0.1, coverage).result_set
        assert chosen is not None
        np.testing.assert_array_equal(chosen.places, places)


def test_labels_share_what_none_leaves() -> None:
    """At most one label is the match: with log-odds −log d − 1 against none, by hand."""
    found = neighbours(0.9, 0.8, 0.7)
    labels = np.array([0, 1, 0], dtype=np.int32)
    decision = decide(calibration(), query(), found, labels, 3, 0.1, 0.9)
    odds = np.exp(-1) / (np.array([0.1, 0.2]) + 1e-4)
    expected = (odds / (1 + odds.sum()))[[0, 1, 0]]
    np.testing.assert_allclose(decision.match_probabilities, expected, rtol=1e-9)


def test_feedback_corrects_probabilities_and_intervals_but_no_result_set() -> None:
    found, labels = neighbours(0.95, 0.6, -0.9), np.arange(3, dtype=np.int32)
    doubtful = replace(calibration(), feedback=Recalibration(0.5, -1.0))
    before, after = (
        decide(fitted, query(), found, labels, 3, 0.1, 0.9) for fitted in (calibration(), doubtful)
    )
    assert before.match_probabilities is not None
    assert before.match_log_odds is not None
    assert before.match_intervals is not None
    np.testing.assert_allclose(expit(before.match_log_odds), before.match_probabilities)
    np.testing.assert_array_equal(after.match_log_odds, before.match_log_odds)
    np.testing.assert_allclose(after.match_probabilities, expit(0.5 * before.match_log_odds - 1))
    np.testing.assert_allclose(after.match_intervals, doubtful.feedback.of(before.match_intervals))
    assert after.no_match_probability == before.no_match_probability
    assert before.result_set is not None
    assert after.result_set is not None
    np.testing.assert_array_equal(after.result_set.places, before.result_set.places)
    assert (before.verdict, after.verdict) == ("ambiguous", "ambiguous")
    sure = replace(calibration(), feedback=Recalibration(2.0, 1.0))
    assert decide(sure, query(), found, labels, 3, 0.1, 0.9).verdict == "match"


def test_saved_and_loaded_it_decides_the_same(tmp_path: Path) -> None:
    fitted = calibration()
    fitted.save(tmp_path)
    loaded = Calibration.load(tmp_path)
    assert loaded is not None
    found = neighbours(0.8, 0.5, 0.4)
    first = decide(fitted, query(), found, LABELS, 3, 0.1, 0.9)
    second = decide(loaded, query(), found, LABELS, 3, 0.1, 0.9)
    np.testing.assert_array_equal(first.match_probabilities, second.match_probabilities)
    assert first.no_match_probability == second.no_match_probability
    assert (loaded.report, loaded.alpha, loaded.n_queries) == ({"n_matched": 9}, 0.1, 9)
    assert loaded.quality_limits == {"too_dark": 20.0}
    assert loaded.operating.points() == fitted.operating.points()
    assert first.result_set is not None
    assert second.result_set is not None
    np.testing.assert_array_equal(first.result_set.places, second.result_set.places)
    np.testing.assert_array_equal(first.match_intervals, second.match_intervals)
    generator = np.random.default_rng(1)
    asked = Embeddings(*(generator.uniform(0.1, 1, (3, n)).astype(np.float32) for n in (4, 4, 5)))
    np.testing.assert_array_equal(fitted.outlier_score(asked), loaded.outlier_score(asked))


def test_the_operating_point_covers_most_within_the_error() -> None:
    curve = calibration().operating
    assert curve.at(0.05) == curve.points()[1]
    assert curve.at(0.01) == curve.points()[0]
    assert curve.at(0.5) == curve.points()[1]  # the last would call unlikely items a match


def test_no_calibration_in_the_directory_is_none(tmp_path: Path) -> None:
    assert Calibration.load(tmp_path) is None


def test_a_calibration_on_other_signals_is_refused(tmp_path: Path) -> None:
    calibration().save(tmp_path)
    path = tmp_path / "calibration.json"
    path.write_text(path.read_text().replace("log_distance_50", "something_else"))
    with pytest.raises(BundleMismatch, match="something_else"):
        Calibration.load(tmp_path)
