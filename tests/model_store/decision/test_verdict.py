from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import expit, logit

from model_store.decision import (
    SIGNALS,
    Calibration,
    LabelMeans,
    MatchModel,
    OutlierDetector,
    Recalibration,
    Retrieved,
    Terms,
    decide,
)
from model_store.decision.calibration import UNKNOWN_CLASS
from model_store.decision.outliers import DisplacementModel
from model_store.decision.verdict import Assessment, _level, _verdict
from model_store.encoder.contract import Embeddings
from model_store.errors import UnknownSource
from model_store.messages import message
from model_store.predictive import Predictive
from tests.support.calibration_evidence import evidence
from tests.support.narrowing import not_none


def logistic(signal: str, weight: float, intercept: float = 0.0) -> MatchModel:
    """A model that looks at one signal."""
    weights = np.zeros(len(SIGNALS))
    weights[SIGNALS.index(signal)] = weight
    zero, one = np.zeros(len(SIGNALS)), np.ones(len(SIGNALS))
    return MatchModel(weights, zero, one, intercept)


EVIDENCE = evidence(400, 400, critical=np.r_[np.linspace(0, 1, 400), np.full(400, -1.0)])


def calibration() -> Calibration:
    generator = np.random.default_rng(0)

    def array(*shape: int) -> NDArray[np.float32]:
        return generator.standard_normal(shape).astype(np.float32)

    return Calibration(
        "encoder",
        search={"index": "IndexFlatIP"},
        n_candidates=200,
        n_queries=9,
        alpha=0.1,
        coverage=0.9,
        max_error=0.05,
        max_false_match_rate=None,
        delta=0.1,
        assumed_absent=0.05,
        expected_absent=None,
        order="similarity",
        similarity_stds=np.arange(1, 10) / 10,
        outlier_scores=np.arange(1.0, 10.0),
        means=LabelMeans(np.eye(3, 2, dtype=np.float32)),
        label_classes=np.full(3, 2, dtype=np.int8),
        n_labels=np.array([0, 0, 3]),
        detector=OutlierDetector(
            n_averaged=1,
            centre=array(5),
            basis=array(5, 2),
            references=array(20, 2),
            label_means=array(3, 2),
            whitening=array(2, 2),
            residual_variance=0.5,
            directions=array(20, 4),
        ),
        match=logistic("log_distance", -1.0, intercept=-1.0),
        feedback=Recalibration(),
        evidence=EVIDENCE,
        quality_limits={"too_dark": 20.0},
        report={"n_matched": 9},
    )


def query(spherical_variance: float = 0.35, outlier_score: float = 2.5) -> Predictive:
    direction = np.array([1.0, 0.0], dtype=np.float32)
    return Predictive(direction, direction, spherical_variance, outlier_score)


def found(
    *similarities: float,
    labels: Sequence[int] | None = None,
    n_listed: int | None = None,
    shown: Sequence[int] | None = None,
    allowed: Sequence[bool] | None = None,
) -> Retrieved:
    """Items found: all of one label, listed, and shown, unless something else is said."""
    n = len(similarities)
    return Retrieved(
        np.array(similarities),
        np.array([0] * n if labels is None else labels, dtype=np.int32),
        n if n_listed is None else n_listed,
        np.array(range(n) if shown is None else shown, dtype=np.int64),
        None if allowed is None else np.array(allowed),
    )


TERMS = Terms(alpha=0.1, coverage=0.9)


def test_without_calibration_nothing_is_invented() -> None:
    decision = decide(None, query(), found(0.9, 0.8, 0.7), TERMS)
    assert decision.verdict == "not_calibrated"
    assert decision.match_probabilities is None
    assert decision.assessment.outlier_p_value is None
    assert decision.assessment.percentile is None
    assert decision.reason is None


def test_without_calibration_it_says_what_was_asked_for_in_vain() -> None:
    for terms, names in (
        (Terms(0.1, expected_absent=0.5), ("`expected_absent`",)),
        (Terms(0.1, source="phone"), ("`source`",)),
        (Terms(0.1, expected_absent=0.5, source="phone"), ("`expected_absent`", "`source`")),
    ):
        reason = decide(None, query(), found(0.9, 0.8), terms).reason
        assert reason is not None
        assert "not calibrated" in reason
        assert all(name in reason for name in names)


@pytest.mark.parametrize(
    ("similarity", "outlier_score", "verdict"),
    [
        (0.99, 2.5, "match"),
        (0.80, 2.5, "ambiguous"),
        (0.30, 2.5, "no_match"),
        (0.99, 9.5, "out_of_distribution"),
    ],
)
def test_verdicts(similarity: float, outlier_score: float, verdict: str) -> None:
    asked = query(outlier_score=outlier_score)
    assert decide(calibration(), asked, found(similarity, 0.2, 0.1), TERMS).verdict == verdict


def test_a_query_whose_outlier_score_is_unknown_gets_no_probability() -> None:
    unknown = query(spherical_variance=0.35, outlier_score=np.nan)
    listed = replace(found(0.9, 0.5, labels=[0, 1]), uncertainty=0.35)
    decision = decide(calibration(), unknown, listed, Terms(0.1))
    assert decision.verdict == "not_calibrated"
    assert decision.match_probabilities is None
    assert decision.result_set is None
    assert decision.no_match_probability is None
    assert decision.assessment.outlier_p_value is None
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


def test_a_match_begins_at_the_threshold_itself() -> None:
    promise = SimpleNamespace(shortfall=None)
    promises: Any = SimpleNamespace(threshold=lambda _: 0.9, matches=[promise], doubt=None)
    below = float(np.nextafter(0.9, 0))
    words = [
        _verdict(Assessment(), Terms(alpha=0.1, coverage=0.9), promises, probability, 0, 0.0)[0]
        for probability in (below, 0.9)
    ]
    assert words == ["ambiguous", "match"]


@pytest.mark.parametrize(
    ("nothing", "probability", "wanted"),
    [
        (0.5, 0.5, ("ambiguous", "shortfall")),
        (0.5, float(np.nextafter(0.5, 0)), ("ambiguous", "doubt")),
        (float(np.nextafter(0.5, 1)), 0.4, ("no_match", "doubt")),
    ],
)
def test_no_match_and_what_is_missing_begin_beyond_one_half(
    nothing: float, probability: float, wanted: tuple[str, str]
) -> None:
    matches = [SimpleNamespace(shortfall="shortfall")]
    promises: Any = SimpleNamespace(threshold=lambda _: 0.9, matches=matches, doubt="doubt")
    assert _verdict(Assessment(), TERMS, promises, probability, 0, nothing) == wanted


def test_percentile_and_level() -> None:
    fitted = calibration()
    assert fitted.uncertainty_percentile(0.0) == 0
    assert fitted.uncertainty_percentile(0.95) == 100
    assert replace(fitted, similarity_stds=None).uncertainty_percentile(0.5) is None
    levels = [
        decide(
            fitted, query(), replace(found(0.9, 0.8, 0.7), uncertainty=value), TERMS
        ).assessment.level
        for value in (0.05, 0.75, 0.95)
    ]
    assert levels == ["low", "medium", "high"]


@pytest.mark.parametrize(
    ("percentile", "level"),
    [(0, "low"), (50, "low"), (50.1, "medium"), (90, "medium"), (90.1, "high"), (100, "high")],
)
def test_half_of_the_ordinary_queries_are_low_and_the_last_tenth_is_high(
    percentile: float, level: str
) -> None:
    assert _level(percentile) == level


def test_promises_are_kept_for_the_shares_that_were_asked_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any caller may ask for any share, and what is promised of each takes a while to compute."""
    monkeypatch.setattr("model_store.decision.calibration._MOST_PROMISES", 2)
    fitted = calibration()
    first, second = fitted.promises(0.1), fitted.promises(0.2)
    assert fitted.promises(0.1) is first
    assert fitted.promises() is fitted.promises(fitted.default_share)
    assert fitted.promises(0.1) is first
    assert fitted.promises(0.2) is not second
    assert cast("Any", fitted._promises).cache_info().currsize == 2


def test_labels_that_came_later_are_of_no_known_class() -> None:
    fitted = calibration()  # of three labels
    np.testing.assert_array_equal(
        fitted.known_classes(np.array([0, 2, 3, -1], dtype=np.int32)),
        [2, 2, UNKNOWN_CLASS, UNKNOWN_CLASS],
    )
    np.testing.assert_array_equal(fitted.classes_of(np.array([0, 3], dtype=np.int32)), [2, 0])
    without = replace(fitted, label_classes=np.array([2, -1, -1, 0], dtype=np.int8))
    assert [without.n_new_labels(n) for n in (4, 7)] == [2, 5]
    for codes in ([0, 2], [0, 3]):
        assert fitted.known_classes(np.array(codes, dtype=np.int32)).dtype == np.int8
    assert [fitted.n_new_labels(n) for n in (2, 3, 4)] == [0, 0, 1]


@pytest.mark.slow
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(-3, 3))
def test_a_closer_item_of_the_same_label_never_has_a_lower_probability(
    values: list[float], weight: float
) -> None:
    fitted = replace(calibration(), match=logistic("log_distance_ratio", weight))
    ordered = sorted(values, reverse=True)
    labels = np.arange(len(values), dtype=np.int32) % 3
    shown = range(min(10, len(values)))
    decision = decide(fitted, query(), found(*ordered, labels=labels.tolist(), shown=shown), TERMS)
    probabilities = decision.match_probabilities
    assert probabilities is not None
    assert len(probabilities) == min(10, len(values))
    for code in range(3):
        assert (np.diff(probabilities[labels[: len(probabilities)] == code]) <= 0).all()
    assert (probabilities >= 0).all()
    of_labels = probabilities[np.unique(labels[: len(probabilities)], return_index=True)[1]]
    assert of_labels.sum() <= 1 + 1e-9


def test_the_result_set_holds_the_nearest_item_of_each_likely_label() -> None:
    retrieved = found(0.9, 0.88, 0.7, 0.2, -1.0, labels=[0, 0, 1, 1, 2], shown=[0])
    for coverage, places in ((0.98, [0, 2, 4]), (0.9, [0, 2]), (0.5, [0])):
        terms = Terms(0.1, coverage)
        chosen = decide(calibration(), query(), retrieved, terms).result_set
        assert chosen is not None
        np.testing.assert_array_equal(chosen.places, places)


def test_labels_share_what_none_leaves() -> None:
    """At most one label is the match: with log-odds −log d − 1 against none, by hand."""
    decision = decide(calibration(), query(), found(0.9, 0.8, 0.7, labels=[0, 1, 0]), TERMS)
    odds = np.exp(-1) / (np.array([0.1, 0.2]) + 1e-4)
    expected = (odds / (1 + odds.sum()))[[0, 1, 0]]
    assert decision.match_probabilities is not None
    np.testing.assert_allclose(decision.match_probabilities, expected, rtol=1e-9)
    assert decision.no_match_probability == pytest.approx(1 / (1 + odds.sum()))
    assert decision.assumed_no_match == decision.no_match_probability


def test_another_share_of_absent_queries_moves_probabilities() -> None:
    asked = query(), found(0.8, 0.5, labels=[0, 1])
    usual, rarer = (
        decide(calibration(), *asked, replace(TERMS, expected_absent=share))
        for share in (0.05, 0.5)
    )
    now = logit(not_none(rarer.match_probabilities))
    moved = now - logit(not_none(usual.match_probabilities))
    assert (moved < -0.1).all()


def test_feedback_corrects_probabilities_but_no_result_set() -> None:
    retrieved = found(0.95, 0.6, -0.9, labels=[0, 1, 2])
    doubtful = replace(calibration(), feedback=Recalibration(0.5, -1.0))
    before, after = (
        decide(fitted, query(), retrieved, TERMS) for fitted in (calibration(), doubtful)
    )
    assert before.match_probabilities is not None
    assert before.match_log_odds is not None
    assert after.match_probabilities is not None
    assert after.match_log_odds is not None
    np.testing.assert_allclose(expit(before.match_log_odds), before.match_probabilities)
    np.testing.assert_array_equal(after.match_log_odds, before.match_log_odds)
    np.testing.assert_allclose(after.match_probabilities, expit(0.5 * before.match_log_odds - 1))
    # At most one label is right: what the corrected ones leave is for none.
    assert after.no_match_probability == pytest.approx(1 - after.match_probabilities.sum())
    assert after.assumed_no_match == before.assumed_no_match
    assert before.result_set is not None
    assert after.result_set is not None
    np.testing.assert_array_equal(after.result_set.places, before.result_set.places)
    sure = replace(calibration(), feedback=Recalibration(2.0, 1.0, n_pairs=1000))
    assert decide(sure, query(), retrieved, TERMS).verdict == "match"


def test_saved_and_loaded_it_decides_the_same(tmp_path: Path) -> None:
    fitted = calibration()
    fitted.save(tmp_path)
    loaded = Calibration.load(tmp_path)
    assert loaded is not None
    first, second = (decide(one, query(), found(0.8, 0.5, 0.4), TERMS) for one in (fitted, loaded))
    np.testing.assert_array_equal(first.match_probabilities, second.match_probabilities)
    assert first.no_match_probability == second.no_match_probability
    assert (loaded.report, loaded.alpha, loaded.n_queries) == ({"n_matched": 9}, 0.1, 9)
    assert loaded.quality_limits == {"too_dark": 20.0}
    assert loaded.promises().curve() == fitted.promises().curve()
    assert loaded.promises().matches == fitted.promises().matches
    assert first.result_set is not None
    assert second.result_set is not None
    np.testing.assert_array_equal(first.result_set.places, second.result_set.places)
    generator = np.random.default_rng(1)
    asked = Embeddings(*(generator.uniform(0.1, 1, (3, n)).astype(np.float32) for n in (4, 4, 5)))
    np.testing.assert_array_equal(fitted.outlier_score(asked), loaded.outlier_score(asked))


def test_a_probability_does_not_depend_on_what_may_be_listed() -> None:
    whole = found(0.95, 0.9, 0.6, 0.5, labels=[0, 1, 2, 1])
    free = decide(calibration(), query(), whole, TERMS)
    part = replace(whole, listed=np.array([1, 3]), allowed=np.array([False, True, False, True]))
    shown = decide(calibration(), query(), part, TERMS)
    assert free.match_probabilities is not None
    assert shown.match_probabilities is not None
    np.testing.assert_array_equal(shown.match_probabilities, free.match_probabilities[[1, 1]])
    assert shown.no_match_probability == pytest.approx(1 - free.match_probabilities[1])
    assert shown.verdict == "no_match"
    assert shown.result_set is not None
    assert (shown.result_set.promised_for, shown.result_set.places.tolist()) == ((), [1])
    assert shown.result_set.shortfall is not None
    known = decide(calibration(), query(), part, replace(TERMS, filter_means="known"))
    assert known.match_probabilities is not None
    assert known.no_match_probability is not None
    left = free.no_match_probability
    assert left is not None
    np.testing.assert_allclose(
        known.match_probabilities[0],
        free.match_probabilities[1] / (free.match_probabilities[1] + left),
    )
    assert known.match_probabilities[0] + known.no_match_probability == pytest.approx(1)


def test_items_beyond_the_list_change_no_probability_in_it() -> None:
    short = decide(calibration(), query(), found(0.95, 0.9, labels=[0, 1]), TERMS)
    longer = found(0.95, 0.9, 0.3, 0.2, labels=[0, 1, 2, 0], n_listed=2)
    long = decide(calibration(), query(), longer, TERMS)
    assert short.match_probabilities is not None
    assert long.match_probabilities is not None
    np.testing.assert_array_equal(long.match_probabilities[:2], short.match_probabilities)
    assert 0 < long.match_probabilities[2] < short.no_match_probability
    assert long.match_probabilities[3] == long.match_probabilities[0]


def test_nothing_to_show_is_no_match() -> None:
    empty = found(0.95, 0.9, shown=[], allowed=[False, False])
    decision = decide(calibration(), query(), empty, TERMS)
    assert (decision.verdict, decision.no_match_probability) == ("no_match", 1.0)
    assert decide(calibration(), query(), found(), TERMS).verdict == "not_calibrated"


def test_probabilities_and_verdict_follow_the_share_of_absent_queries() -> None:
    few, many = (
        decide(
            calibration(),
            query(),
            found(0.85, 0.2, 0.1),
            replace(TERMS, expected_absent=share),
        )
        for share in (0.05, 0.95)
    )
    assert few.match_probabilities is not None
    assert many.match_probabilities is not None
    assert many.match_log_odds is not None
    odds = few.match_probabilities[0] / (1 - few.match_probabilities[0])
    expected = odds * (0.05 / 0.95) ** 2
    assert many.match_probabilities[0] == pytest.approx(expected / (1 + expected))
    assert many.assumed_no_match == few.assumed_no_match == few.no_match_probability
    assert (few.absent_share, many.absent_share) == (0.05, 0.95)
    assert many.verdict == "no_match"
    np.testing.assert_allclose(
        logit(many.match_probabilities[0]), many.match_log_odds[0], rtol=1e-9
    )


@pytest.mark.parametrize("similarity", [0.99, 0.85, 0.2])
def test_where_absence_is_unknown_doubt_is_said_whatever_the_verdict(similarity: float) -> None:
    unknown = replace(calibration(), evidence=replace(EVIDENCE, absence="hidden_trained_labels"))
    retrieved = found(similarity, 0.2, 0.1)
    few, many = (
        decide(unknown, query(), retrieved, replace(TERMS, expected_absent=share))
        for share in (0.05, 0.5)
    )
    assert many.verdict in {"ambiguous", "no_match"}
    assert "probabilities may be far off" in not_none(many.reason)
    assert "far off" not in (few.reason or "")
    known = decide(calibration(), query(), retrieved, replace(TERMS, expected_absent=0.5))
    assert "far off" not in (known.reason or "")


@pytest.mark.parametrize(
    ("similarity", "verdict"), [(0.99, "match"), (0.93, "ambiguous"), (0.2, "no_match")]
)
def test_few_withheld_labels_change_no_verdict_and_are_said(
    similarity: float, verdict: str
) -> None:
    clusters = np.where(
        EVIDENCE.absent, -1 - np.arange(len(EVIDENCE.absent)) % 9, EVIDENCE.clusters
    )
    of_nine = replace(calibration(), evidence=replace(EVIDENCE, clusters=clusters))
    many = replace(TERMS, expected_absent=0.2)
    assert not decide(of_nine, query(), found(similarity, 0.2, 0.1), many).guaranteed
    assert "9 labels of absent" in not_none(of_nine.promises(0.2).doubt)
    assert decide(of_nine, query(), found(similarity, 0.2, 0.1), TERMS).verdict == verdict


def test_what_is_stale_gives_no_match_and_promises_nothing() -> None:
    retrieved = found(0.99, 0.2, 0.1)
    assert decide(calibration(), query(), retrieved, TERMS).verdict == "match"
    stale = decide(calibration(), query(), retrieved, replace(TERMS, stale="It drifted."))
    assert (stale.verdict, stale.reason) == ("ambiguous", "It drifted.")
    assert stale.guaranteed is False
    assert stale.result_set is not None
    assert (stale.result_set.promised_for, stale.result_set.shortfall) == ((), "It drifted.")


@pytest.mark.parametrize(
    ("similarity", "outlier_score", "verdict"),
    [
        (0.93, 2.5, "ambiguous"),
        (0.2, 2.5, "no_match"),
        (0.99, 1e6, "out_of_distribution"),
    ],
)
@pytest.mark.parametrize("doubt", ["stale", "drift"])
def test_doubt_is_the_reason_of_every_verdict(
    similarity: float, outlier_score: float, verdict: str, doubt: str
) -> None:
    """Before that a threshold is missing, and under a filter too."""
    terms: dict[str, Any] = {doubt: "It drifted."}
    listed = found(similarity, 0.2, 0.1, allowed=[True, True, False])
    decision = decide(
        calibration(), query(outlier_score=outlier_score), listed, replace(Terms(0.1), **terms)
    )
    assert (decision.verdict, decision.reason) == (verdict, "It drifted.")
    assert not_none(decision.result_set).shortfall == "It drifted."


def test_stale_calibration_is_the_reason_before_a_missing_threshold() -> None:
    rare = replace(
        calibration(),
        label_classes=np.array([0, 2, 2], dtype=np.int8),
        n_labels=np.array([1, 0, 2]),
    )
    stale = replace(TERMS, stale="It drifted.")
    assert decide(rare, query(), found(0.99, 0.2), stale).reason == "It drifted."


def test_match_without_a_guarantee_says_why() -> None:
    clusters = np.where(EVIDENCE.absent, -1 - np.arange(800) % 3, EVIDENCE.clusters)
    of_three = replace(calibration(), evidence=replace(EVIDENCE, clusters=clusters))
    decision = decide(of_three, query(), found(0.999, 0.2, 0.1), TERMS)
    assert (decision.verdict, decision.guaranteed) == ("match", False)
    assert decision.reason == of_three.promises().matches[2].shortfall is not None


@pytest.mark.parametrize("kind", ["image", "text"])
def test_query_without_an_outlier_score_has_no_reason_of_an_uncalibrated_gallery(kind: Any) -> None:
    unknown = replace(query(outlier_score=np.nan), kind=kind)
    terms = replace(TERMS, expected_absent=0.2, source="phone")
    decision = decide(calibration(), unknown, found(0.99), terms)
    assert (decision.verdict, decision.reason) == ("not_calibrated", None)


def test_displacement_needs_a_picture_state_and_a_prediction() -> None:
    ones = np.ones(5, np.float32)
    state = DisplacementModel(ones, ones, ones, 0.0, np.linspace(0, 1, 9))
    known = replace(calibration(), picture=state)
    for fitted, displacement, wanted in (
        (known, 0.5, 0.5),
        (known, np.nan, None),
        (calibration(), 0.5, None),
    ):
        asked = replace(query(), displacement=displacement)
        decision = decide(fitted, asked, found(0.99, 0.2), TERMS)
        assert decision.assessment.displacement == wanted


def test_drift_keeps_the_verdict_without_the_guarantee() -> None:
    retrieved, alien = found(0.99, 0.2, 0.1), query(outlier_score=1e6)
    ordinary = decide(calibration(), query(), retrieved, TERMS)
    assert (ordinary.verdict, ordinary.guaranteed) == ("match", True)
    drifting = decide(calibration(), query(), retrieved, replace(TERMS, drift="It drifted."))
    assert (drifting.verdict, drifting.reason) == ("match", "It drifted.")
    assert drifting.guaranteed is False
    assert drifting.match_probabilities is not None
    assert ordinary.match_probabilities is not None
    assert drifting.match_probabilities.tolist() == ordinary.match_probabilities.tolist()
    assert drifting.result_set is not None
    assert (drifting.result_set.promised_for, drifting.result_set.shortfall) == ((), "It drifted.")
    flagged = decide(calibration(), alien, retrieved, replace(Terms(0.1), drift="It drifted."))
    assert (flagged.verdict, flagged.reason) == ("out_of_distribution", "It drifted.")


def test_nothing_is_guaranteed_without_calibration() -> None:
    assert decide(None, query(), found(0.9), TERMS).guaranteed is False


def test_an_alpha_that_can_flag_nothing_flags_nothing_and_says_so() -> None:
    """Nine calibration queries: the smallest p-value is 0.1."""
    alien = query(outlier_score=1e6)
    assessment = decide(calibration(), alien, found(0.9), TERMS).assessment
    assert assessment.is_outlier(0.1) is True
    assert assessment.least_alpha == pytest.approx(0.1)
    assert assessment.is_outlier(0.09) is None
    assert decide(calibration(), alien, found(0.99), Terms(0.09)).verdict == "match"


def test_a_first_item_of_a_label_without_evidence_gets_no_match() -> None:
    rare = replace(
        calibration(),
        label_classes=np.array([0, 2, 2], dtype=np.int8),
        n_labels=np.array([1, 0, 2]),
    )
    decision = decide(rare, query(), found(0.99, 0.2, labels=[0, 1]), TERMS)
    assert decision.verdict == "ambiguous"
    assert decision.reason is not None
    assert "only one" in decision.reason
    assert decide(rare, query(), found(0.99, 0.2, labels=[1, 0]), TERMS).verdict == "match"


@pytest.mark.parametrize("code", [0, 3])
def test_a_label_that_was_added_after_the_calibration_is_the_reason(code: int) -> None:
    """Code 0 is in a place of the calibration's labels, and code 3 is behind them."""
    classes = np.array([UNKNOWN_CLASS, 2, 2], dtype=np.int8)
    fitted = replace(calibration(), label_classes=classes, n_labels=np.array([0, 0, 2]))
    decision = decide(fitted, query(), found(0.99, 0.2, labels=[code, 1]), TERMS)
    assert decision.verdict == "ambiguous"
    assert decision.reason == message("label_added")
    unlabelled = decide(fitted, query(), found(0.99, 0.2, labels=[-1, 1]), TERMS)
    assert unlabelled.reason is not None
    assert "whose first item is the only one of its label, at least" in unlabelled.reason


def test_a_source_must_be_known() -> None:
    with pytest.raises(UnknownSource, match="no source was given"):
        decide(calibration(), query(), found(0.9), replace(TERMS, source="phone"))


@pytest.mark.parametrize("source", ["phone", "scanner 2", "a scanner"])
def test_unknown_source_is_refused_with_the_known_ones(source: str) -> None:
    known = replace(calibration(), evidence=replace(EVIDENCE, source_names=["scanner"]))
    with pytest.raises(UnknownSource, match="'scanner'"):
        decide(known, query(), found(0.9), replace(TERMS, source=source))


@pytest.mark.parametrize(
    "change",
    [
        {"encoder_fingerprint": "another"},
        {"search": {"index": "another"}},
        {"n_queries": 10},
        {"assumed_absent": 0.06},
    ],
)
def test_probabilities_of_another_fit_are_known_as_such(change: dict[str, Any]) -> None:
    fitted = calibration()
    assert replace(fitted, **change).match_fingerprint != fitted.match_fingerprint


def test_probabilities_are_those_of_the_fit_whatever_is_promised_of_them() -> None:
    one = replace(calibration(), search={"a": 1, "b": 2})
    other = replace(one, search={"b": 2, "a": 1}, max_error=0.2, expected_absent=0.3)
    assert other.match_fingerprint == one.match_fingerprint


def test_outlier_scores_are_known_by_all_that_makes_them() -> None:
    """A row that goes from one array to the next leaves the bytes of both together as they are."""
    fitted = calibration()
    known = {fitted.outlier_fingerprint(), replace(fitted, max_error=0.2).outlier_fingerprint()}
    assert len(known) == 1
    detector = fitted.detector
    moved = replace(
        detector,
        references=detector.references[:-1],
        label_means=np.concatenate([detector.references[-1:], detector.label_means]),
    )
    others = [
        replace(fitted, detector=moved),
        replace(fitted, detector=replace(detector, residual_variance=0.6)),
        replace(fitted, detector=replace(detector, centre=detector.centre + 1)),
    ]
    known |= {other.outlier_fingerprint() for other in others}
    assert len(known) == 1 + len(others)


def test_no_calibration_in_the_directory_is_none(tmp_path: Path) -> None:
    assert Calibration.load(tmp_path) is None


class Payload:
    """Would run code where it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("the file ran its code",))


def test_a_file_with_code_in_it_is_not_run(tmp_path: Path) -> None:
    calibration().save(tmp_path)
    with np.load(tmp_path / "calibration.npz") as arrays:
        forged = {**arrays} | {"outlier_scores": np.array([Payload()], dtype=object)}
    np.savez(tmp_path / "calibration.npz", **forged)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Calibration.load(tmp_path)


def test_a_calibration_on_other_signals_decides_nothing_and_says_why(tmp_path: Path) -> None:
    calibration().save(tmp_path)
    path = tmp_path / "calibration.json"
    path.write_text(path.read_text().replace("log_distance_50", "something_else"))
    old = Calibration.load(tmp_path)
    assert old is not None
    decision = decide(old, query(), found(0.99, 0.2, 0.1), TERMS)
    assert (decision.verdict, decision.guaranteed) == ("not_calibrated", False)
    assert "vouch-build upgrade BUNDLES" in not_none(decision.reason)
    assert decision.assessment == Assessment()
    old.save(tmp_path)
    again = Calibration.load(tmp_path)
    assert again is not None
    assert again.outdated is not None, "saved as it is, it stays outdated"


def test_by_probability_a_likelier_label_comes_before_a_nearer_one() -> None:
    """Of five items the nearest is alone of its label, and another label is likelier."""
    fitted = replace(calibration(), match=logistic("mean_margin", -2.0))
    retrieved = found(0.9, 0.88, 0.7, 0.69, 0.68, labels=[0, 1, 1, 1, 2])
    nearest = decide(fitted, query(), retrieved, TERMS)
    likeliest = decide(fitted, query(), retrieved, replace(TERMS, order="probability"))
    np.testing.assert_array_equal(nearest.ranking, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(likeliest.ranking, [1, 2, 3, 4, 0])
    assert nearest.match_probabilities is not None
    assert likeliest.ranking is not None
    np.testing.assert_array_equal(
        likeliest.match_probabilities, nearest.match_probabilities[likeliest.ranking]
    )
    assert likeliest.no_match_probability == nearest.no_match_probability
    short = decide(
        fitted, query(), replace(retrieved, limit=2), replace(TERMS, order="probability")
    )
    np.testing.assert_array_equal(short.ranking, likeliest.ranking)
    assert likeliest.match_probabilities is not None
    np.testing.assert_array_equal(short.match_probabilities, likeliest.match_probabilities[:2])


def test_by_probability_the_verdict_is_on_the_likeliest() -> None:
    """The promise of likeliest labels: here anything is a match, of first items nothing."""
    n = len(EVIDENCE)
    sure = replace(
        EVIDENCE,
        first_probabilities=np.full(n, 0.3),
        correct=np.zeros(n, dtype=bool),
        likeliest_probabilities=np.where(EVIDENCE.absent, 0.01, 0.9),
        likeliest_correct=~EVIDENCE.absent,
    )
    fitted = replace(calibration(), match=logistic("mean_agreement", 3.0), evidence=sure)
    retrieved = found(0.9, 0.88, 0.87, 0.86, 0.85, 0.84, labels=[0, 1, 1, 1, 1, 1])
    verdicts = [
        decide(fitted, query(), retrieved, replace(TERMS, order=order)).verdict
        for order in ("similarity", "probability")
    ]
    assert verdicts == ["ambiguous", "match"]


@pytest.mark.parametrize(("angle", "displacement"), [(1.0, 0.460), (3.0, 1.990), (9.0, 2.0)])
def test_displacement_grows_with_the_predicted_angle_up_to_two(
    angle: float, displacement: float
) -> None:
    ones = np.ones(1, dtype=np.float32)
    state = DisplacementModel(0 * ones, ones, 0 * ones, angle, np.linspace(0, 1, 9))
    assert state.displacement(ones[None]) == pytest.approx(displacement, abs=1e-3)


def test_calibration_with_cached_promises_is_freed_without_the_collector() -> None:
    fitted = calibration()
    fitted.promises().sets.promised_for(0.9)
    gone = weakref.ref(fitted), weakref.ref(fitted.promises().sets)
    gc.disable()
    try:
        del fitted
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
