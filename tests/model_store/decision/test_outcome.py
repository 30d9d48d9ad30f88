"""The outcome of a calibration in sentences: numbers, shortfalls, causes and next steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model_store.decision import Evidence, Recalibration, outcome_of
from model_store.decision.outcome import (
    LEAST_RECALL,
    MOST_LINES,
    _about,
    percent,
)
from model_store.messages import OUTCOME_NUMBERS
from model_store.records import GalleryOutcome, OutcomeLine
from tests.support.calibration_evidence import evidence
from tests.support.certified_bundles import calibration

REPORT = {"queries": "held_out_images", "n_leave_one_out": 0}


def outcome(
    of: Evidence, evaluation: dict[str, Any] | None = None, **changes: Any
) -> GalleryOutcome:
    """Return the outcome of evidence at 5 % error."""
    given = {"report": REPORT, "max_false_match_rate": None} | changes
    return outcome_of(calibration(of, **given), evaluation)


def line(found: GalleryOutcome, code: str) -> OutcomeLine:
    [one] = [line for line in found.lines if line.code == code]
    return one


def codes(found: GalleryOutcome) -> list[str]:
    return [line.code for line in found.lines]


def surely(n: int, n_wrong: int = 0, n_absent: int = 300, **changes: Any) -> Evidence:
    """Return evidence of ``n`` queries that all look right, the first ``n_wrong`` wrongly."""
    present = np.arange(n + n_absent) < n
    correct = present & (np.arange(n + n_absent) >= n_wrong)
    first = np.where(present, 0.99 - 1e-4 * np.arange(n + n_absent), 0.01)
    clusters = np.arange(n + n_absent)
    return evidence(
        n,
        n_absent,
        **(
            {
                "first_probabilities": first,
                "no_match_probabilities": 1 - first,
                "correct": correct,
                "clusters": clusters,
            }
            | changes
        ),
    )


def test_names_of_numbers_are_those_of_the_class() -> None:
    named = set(GalleryOutcome.model_fields) - {"basis", "lines"}
    assert set(OUTCOME_NUMBERS) == named
    found = outcome(evidence())
    assert set(found.model_dump()) == named | {"basis", "lines"}


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0.0, "0 %"),
        (0.0004, "under 0.1 %"),
        (0.019, "1.9 %"),
        (0.05, "5 %"),
        (0.0999, "10 %"),
        (0.544, "54 %"),
        (0.993, "99.3 %"),
        (0.9995, "over 99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_percent_never_rounds_to_certainty(share: float, shown: str) -> None:
    assert percent(share) == shown


@pytest.mark.parametrize(
    ("n", "shown"), [(0, 0), (0.2, 5), (57, 60), (61, 65), (123, 150), (1_501, 2_000)]
)
def test_planned_numbers_are_rounded_up(n: float, shown: int) -> None:
    assert _about(n) == shown


def test_outcome_of_good_calibration_states_four_facts() -> None:
    of = surely(400, n_wrong=4, outlier_p_values=np.r_[np.full(400, 0.5), np.full(300, 0.01)])
    found = outcome(of, alpha=0.05)
    assert found.basis == "calibration"
    assert (found.n_queries, found.recall_at_1, found.match_share) == (400, 0.99, 1.0)
    assert found.match_error == pytest.approx(0.01)
    assert 0.01 < (found.match_error_bound or 0) < 0.05
    assert (found.flagged_share, found.absent_flagged_share) == (0.0, 1.0)
    assert codes(found) == ["recall_at_1", "match_share", "absent", "flagged"]
    assert {one.severity for one in found.lines} == {"fact"}
    assert found.sentences()[:2] == [
        "The first result is right for 99 % of 400 calibration queries.",
        (
            "The verdict is `match` for 100 % of these queries. At most 5 % of matches are wrong, "
            "with 90 % confidence. Observed error of matches: 1 %."
        ),
    ]
    assert "100 % of these queries are flagged `out_of_distribution`." in found.sentences()[2]


def test_flagged_queries_get_no_match() -> None:
    p_values = np.where(np.arange(700) % 2, 0.5, 0.01)
    found = outcome(surely(400, outlier_p_values=p_values), alpha=0.05)
    assert (found.match_share, found.flagged_share) == (0.5, 0.5)
    assert outcome(surely(400), alpha=0.05).flagged_share is None


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"queries": "views_of_items"}, "of 400 augmented views of items."),
        ({"queries": "captions"}, "of 400 captions."),
        (
            {"queries": "left_out_items"},
            "of 400 items, each compared with the rest of the gallery.",
        ),
        (
            {"queries": "held_out_images", "n_leave_one_out": 300},
            "of 400 queries: 100 held out, 300 items, each compared with the rest of the gallery.",
        ),
    ],
)
def test_recall_names_the_kind_of_queries(report: dict[str, Any], said: str) -> None:
    found = outcome(surely(400), report=report)
    assert found.sentences()[0].endswith(said)
    assert ("only_views" in codes(found)) is (report["queries"] == "views_of_items")
    measured = {
        "n_queries": 200,
        "recall_at_1": 0.9,
        "orders": {"similarity": {"match_error": 0.02}},
        "verdicts": {"matched": {"match": 0.8}},
    }
    assert "only_views" not in codes(outcome(surely(400), measured, report=report))


def test_evaluation_takes_the_place_of_calibration_queries() -> None:
    """Of a stream with a twentieth absent queries, errors of both kinds count."""
    measured: dict[str, Any] = {
        "n_queries": 200,
        "recall_at_1": 0.9,
        "orders": {"similarity": {"match_error": 0.02}},
        "verdicts": {
            "matched": {"match": 0.8, "out_of_distribution": 0.04, "ambiguous": 0.16},
            "near": {"match": 0.1, "out_of_distribution": 0.6, "ambiguous": 0.3},
        },
    }
    found = outcome(surely(400), measured)
    assert (found.basis, found.n_queries, found.recall_at_1) == ("evaluation", 200, 0.9)
    assert (found.match_share, found.flagged_share) == (0.8, 0.04)
    assert (found.false_match_rate, found.absent_flagged_share) == (0.1, 0.6)
    assert found.match_error == pytest.approx(
        (0.95 * 0.8 * 0.02 + 0.05 * 0.1) / (0.95 * 0.8 + 0.05 * 0.1)
    )
    assert found.sentences()[0] == "The first result is right for 90 % of 200 evaluation queries."
    del measured["verdicts"]["near"]
    found = outcome(surely(400), measured)
    assert found.match_error == pytest.approx(0.02)
    assert found.absent_flagged_share is None
    measured["verdicts"]["matched"]["match"] = 0.0
    measured["orders"]["similarity"]["match_error"] = None
    assert outcome(surely(400), measured).match_share == 0
    only_absent = outcome(surely(400), {"verdicts": {"near": {"match": 0.1}}})
    assert (only_absent.basis, only_absent.n_queries) == ("calibration", 400)
    assert (only_absent.false_match_rate, only_absent.absent_flagged_share) == (0.1, 0.0)
    assert outcome(surely(400), {"recall_at_1": 0.1}) == outcome(surely(400))


def test_error_above_bound_is_named_only_beyond_chance() -> None:
    measured = {
        "n_queries": 200,
        "recall_at_1": 0.9,
        "orders": {"similarity": {"match_error": 0.15}},
        "verdicts": {"matched": {"match": 0.8}},
    }
    found = line(outcome(surely(400), measured), "error_above_bound")
    assert found.sentence.startswith(
        "The observed error of matches is 15 %, above the bound of 5 %"
    )
    assert "calibrate BUNDLES --queries FILE" in found.sentence
    few = measured | {"n_queries": 20, "orders": {"similarity": {"match_error": 0.0625}}}
    assert "error_above_bound" not in codes(outcome(surely(400), few))


def test_queries_that_refute_the_bound_get_no_promise_of_the_calibration() -> None:
    measured = {
        "n_queries": 300,
        "recall_at_1": 0.4,
        "orders": {"similarity": {"match_error": 0.35}},
        "verdicts": {"matched": {"match": 0.12}},
    }
    found = outcome(surely(400), measured)
    assert codes(found)[-2:] == ["recall_low", "error_above_bound"]
    assert line(found, "match_share").sentence == (
        "The verdict is `match` for 12 % of these queries. Observed error of matches: 35 %."
    )
    kept = measured | {"orders": {"similarity": {"match_error": 0.02}}}
    said = outcome(surely(400), kept)
    assert "At most 5 % of matches are wrong" in line(said, "match_share").sentence
    assert "match_seldom_queries" in codes(said)


def test_uncalibrated_gallery_has_an_outcome() -> None:
    found = outcome_of(None)
    assert [(one.code, one.severity) for one in found.lines] == [("not_calibrated", "warning")]
    [sentence] = found.sentences()
    assert sentence.startswith(
        "Answers have no probabilities: the gallery is not calibrated. Next:"
    )
    assert {getattr(found, name) for name in OUTCOME_NUMBERS} == {None}


def test_low_recall_advises_another_encoder() -> None:
    found = outcome(surely(400, n_wrong=368))
    low = line(found, "recall_low")
    assert low.severity == "failure"
    assert low.sentence == (
        "Recall at 1 is 8 %: this encoder does not separate such images. "
        "Try another encoder: `--encoder timm:NAME`."
    )
    assert "match_never_errors" in codes(found)
    half = outcome(surely(400, n_wrong=200))
    assert half.recall_at_1 == LEAST_RECALL
    assert "recall_low" not in codes(half)


def test_too_few_queries_are_counted_and_more_are_planned() -> None:
    found = outcome(surely(30))
    assert found.match_share == 0
    assert "absent" not in codes(found)
    unknown = outcome(surely(30, absence="hidden_trained_labels"))
    never = line(unknown, "match_never_bounded")
    assert "at least 45 answered queries are needed" in never.sentence
    assert found.match_error is None
    never = line(found, "match_never_queries")
    assert never.severity == "failure"
    n_more = never.parameters["n_more"]
    assert isinstance(n_more, int)
    assert outcome(surely(30 + n_more)).match_share == 1
    assert never.sentence == (
        f"The verdict is never `match` at 5 % error: 30 queries with a match are too few. About "
        f"{n_more} more labelled queries would allow `match`. With an error of 10 % (`vouch-build "
        "calibrate BUNDLES --max-error 0.1`), 100 % of queries get `match`."
    )
    assert "match_share" not in codes(found), "a failure says it once"


def one_wrong_in_thirty(n: int) -> Evidence:
    rows = np.arange(n + 300)
    return surely(n, correct=(rows < n) & (rows % 30 != 15))


def test_planned_queries_allow_for_observed_errors() -> None:
    """Its probabilities expect fewer errors, and would have 60 queries do."""
    few = outcome(one_wrong_in_thirty(60))
    assert few.match_share == 0
    n_more = line(few, "match_never_queries").parameters["n_more"]
    assert isinstance(n_more, int)
    assert n_more > 60


def test_too_few_absent_labels_are_the_cause_where_they_are() -> None:
    """Right answers alone would do; labels of absent queries are too few to bound the others."""
    absent = np.arange(900) >= 600
    first = np.where(absent, 0.01, 0.9)
    clusters = np.where(absent, 900 + np.arange(900) % 3, np.arange(900))
    changes: dict[str, Any] = {"first_probabilities": first, "no_match_probabilities": 1 - first}
    found = outcome(surely(600, clusters=clusters, **changes), expected_absent=0.3)
    never = line(found, "match_never_absent_labels")
    n_more = never.parameters["n_more"]
    assert isinstance(n_more, int)
    assert "have too few labels (3)" in never.sentence
    clusters = np.where(absent, 900 + np.arange(900) % (3 + n_more), np.arange(900))
    more = outcome(surely(600, clusters=clusters, **changes), expected_absent=0.3)
    assert more.match_share


def test_a_share_that_is_too_large_is_the_cause_where_it_is() -> None:
    found = outcome(surely(400), expected_absent=0.995)
    never = line(found, "match_never_bounded")
    assert "a share of 0.995 absent queries is too large; a share of " in never.sentence
    assert "match_never_errors" not in codes(found)


def test_errors_that_no_number_of_queries_makes_up_for() -> None:
    wrong = np.arange(700) % 5 == 0
    of = surely(400, correct=(np.arange(700) < 400) & ~wrong)
    never = line(outcome(of), "match_never_errors")
    assert never.sentence.startswith(
        "The verdict is never `match` at 5 % error: too many first results are wrong. With an "
        "error of 30 %"
    )
    assert never.parameters["accepted_share"] == 1


def test_feedback_after_which_nothing_is_a_match_is_the_cause() -> None:
    found = outcome(surely(400), feedback=Recalibration(1.0, -4.0, 300))
    never = line(found, "match_never_bounded")
    assert "but the feedback on 300 results lowers the match probabilities" in never.sentence
    assert "match_never_errors" not in codes(found)


def test_promised_false_match_rate_that_cannot_be_kept_is_the_cause() -> None:
    found = line(
        outcome(surely(400, n_absent=30), max_false_match_rate=0.01), "match_never_bounded"
    )
    assert found.sentence.startswith(
        "The verdict is never `match`. A match for at most 0.01 of the absent queries cannot be "
        "promised: the absent calibration queries"
    )


def test_limit_of_false_match_rate_that_leaves_few_matches_is_the_cause() -> None:
    absent = np.arange(700) >= 400
    first = np.where(absent & (np.arange(700) % 8 > 0), 0.01, 0.9)
    of = surely(400, first_probabilities=first, no_match_probabilities=1 - first)
    assert outcome(of).match_share == 1
    limited = line(outcome(of, max_false_match_rate=0.05), "match_limited")
    assert limited.severity == "failure"
    assert limited.sentence == (
        "The limit of 5 % on the false-match rate allows `match` for 0 % of queries. Without this "
        "limit, 100 % of queries would get `match`."
    )


def test_large_share_of_unknown_absent_queries_is_the_cause() -> None:
    of = surely(400, absence="hidden_trained_labels")
    found = outcome(of, expected_absent=0.5)
    assert "With a share of 0.5 absent queries" in line(found, "match_never_bounded").sentence
    assert "false_match_rate_unknown" in codes(found)


def test_unknown_false_match_rate_says_why() -> None:
    found = outcome(surely(400, absence="hidden_trained_labels"))
    assert found.false_match_rate is found.false_match_bound is None
    assert "absent" not in codes(found)
    measured = {"verdicts": {"near": {"match": 0.1}}}
    evaluated = outcome(surely(400, absence="hidden_trained_labels"), measured)
    assert "false_match_rate_uncertain" in codes(evaluated)
    without = outcome(surely(400, n_absent=0, outlier_p_values=np.full(400, 0.5)))
    assert without.false_match_rate is without.absent_flagged_share is None
    p_values = np.full(700, 0.5)
    hidden = surely(400, absence="hidden_trained_labels", outlier_p_values=p_values)
    assert outcome(hidden).absent_flagged_share is None
    unknown = line(found, "false_match_rate_unknown")
    assert unknown.severity == "warning"
    assert "do not represent absent queries; withhold some labels" in unknown.sentence


def test_false_match_rate_of_few_withheld_labels_is_uncertain() -> None:
    of = surely(400, clusters=np.r_[np.arange(400), 400 + np.arange(300) % 3])
    uncertain = line(outcome(of), "false_match_rate_uncertain")
    assert "3 labels of absent calibration queries are too few" in uncertain.sentence
    assert "false_match_rate_uncertain" not in codes(outcome(surely(400)))


def test_labels_of_a_size_without_matches_are_named() -> None:
    classes = np.where(np.arange(700) < 30, 0, 2).astype(np.int8)
    of = surely(400, first_classes=classes)
    found = outcome(of, n_labels=np.array([30, 0, 20]))
    named = line(found, "match_not_for_labels")
    n_more = named.parameters["n_more"]
    assert isinstance(n_more, int)
    assert n_more > 10
    assert named.sentence == (
        "First results whose label has one item never get the verdict `match`. The calibration "
        f"has 30 such queries with a match; about {n_more} more would allow `match`."
    )
    rows = np.arange(700)
    some = surely(
        400,
        first_classes=np.where(rows < 60, 0, 2).astype(np.int8),
        correct=(rows < 400) & ((rows >= 60) | (rows % 3 == 0)),
    )
    found = outcome(some, n_labels=np.array([30, 0, 20]))
    said = line(found, "match_not_for_labels_bounded").sentence
    assert said.startswith("First results whose label has one item never get the verdict `match`.")
    assert said.endswith("but too many first results are wrong.")


def test_photographs_of_one_object_count_once_among_the_queries_of_a_size() -> None:
    rows = np.arange(700)
    classes = np.where(rows < 300, 0, 2).astype(np.int8)
    of = surely(400, first_classes=classes, clusters=np.where(rows < 300, rows // 10, rows))
    named = line(outcome(of, n_labels=np.array([30, 0, 20])), "match_not_for_labels")
    assert named.parameters["n_queries"] == 30
    n_more = named.parameters["n_more"]
    assert isinstance(n_more, int)
    assert n_more > 10


@pytest.mark.parametrize(("n_queries", "is_named"), [(19, False), (20, True)])
def test_labels_of_a_size_are_named_from_a_twentieth_of_queries_on(
    n_queries: int, *, is_named: bool
) -> None:
    rare = surely(400, first_classes=np.where(np.arange(700) < n_queries, 0, 2).astype(np.int8))
    found = outcome(rare, n_labels=np.array([30, 0, 20]))
    assert ("match_not_for_labels" in codes(found)) is is_named


def half_and_half(n: int, share_wrong: float) -> Evidence:
    """Return evidence whose first 40 % are right, and the rest wrong as often as they expect."""
    rows = np.arange(n + 300)
    sure = rows < 0.4 * n
    first = np.where(sure, 0.99, 1 - share_wrong)
    wrong = ~sure & (rows % round(1 / share_wrong) == 0)
    present = rows < n
    return surely(
        n,
        correct=present & ~wrong,
        first_probabilities=np.where(present, first - 1e-6 * rows, 0.01),
        no_match_probabilities=np.where(present, 0.0, 0.99),
    )


def test_seldom_matches_for_want_of_queries_say_what_more_would_give() -> None:
    found = outcome(half_and_half(200, 1 / 10))
    seldom = line(found, "match_seldom_queries")
    assert 0 < (found.match_share or 0) < 0.5
    assert seldom.severity == "warning"
    assert "With many more labelled queries, up to " in seldom.sentence


@pytest.mark.parametrize("max_false_match_rate", [None, 0.1])
def test_seldom_matches_because_of_errors_say_so(max_false_match_rate: float | None) -> None:
    found = outcome(half_and_half(600, 1 / 4), max_false_match_rate=max_false_match_rate)
    seldom = line(found, "match_seldom_errors")
    assert 0 < (found.match_share or 0) < 0.5
    assert seldom.sentence.startswith("With more matches, the error would exceed 5 %. Try")


def test_accepted_error_is_above_the_present_one() -> None:
    measured = {
        "n_queries": 200,
        "recall_at_1": 0.9,
        "orders": {"similarity": {"match_error": 0.02}},
        "verdicts": {"matched": {"match": 0.2}},
    }
    seldom = line(outcome(surely(400), measured, max_error=0.1), "match_seldom_queries")
    assert seldom.parameters["accepted_error"] == 0.15


def test_a_calibration_of_places_needs_its_queries_again() -> None:
    found = outcome(half_and_half(200, 1 / 10), within=25.0)
    seldom = line(found, "match_seldom_queries")
    assert "(`vouch-build calibrate BUNDLES --queries FILE --max-error 0." in seldom.sentence
    assert "labels" not in line(found, "absent").sentence
    assert found.lines[0].sentence.startswith("A match is an item at most 25 m from the query")


@pytest.mark.parametrize(("n_queries", "is_named"), [(98, True), (99, False), (100, False)])
def test_least_number_of_queries_flags_some(n_queries: int, *, is_named: bool) -> None:
    found = outcome(surely(400), alpha=0.01, outlier_scores=np.arange(float(n_queries)))
    assert ("never_flagged" in codes(found)) is is_named


def test_too_few_queries_to_flag_any_are_counted() -> None:
    found = outcome(surely(400), alpha=0.001, outlier_scores=np.arange(300.0))
    assert line(found, "never_flagged").sentence == (
        "No query can be flagged `out_of_distribution` at 0.1 %: there are 300 calibration "
        "queries, and 999 are needed."
    )


def test_failures_come_before_warnings_within_ten_lines() -> None:
    of = surely(400, n_wrong=368, clusters=np.r_[np.arange(400), 400 + np.arange(300) % 3])
    found = outcome(of, report={"queries": "views_of_items"}, alpha=0.001)
    severities = [one.severity for one in found.lines]
    assert severities == sorted(severities, key=["fact", "failure", "warning"].index)
    assert severities.count("failure") == 2
    assert severities.count("warning") == 3
    assert len(severities) <= MOST_LINES
    assert all(text and "{" not in text for text in found.sentences())


def test_part_of_evidence_keeps_its_p_values() -> None:
    of = surely(400, outlier_p_values=np.arange(700) / 700)
    some = of.at(np.arange(700) % 7 == 0)
    assert some.outlier_p_values is not None
    np.testing.assert_array_equal(some.outlier_p_values, np.arange(0, 700, 7) / 700)
    with pytest.raises(ValueError, match="arrays of one length"):
        replace(of, outlier_p_values=np.zeros(3))


@pytest.mark.parametrize(("share", "warns"), [(None, False), (0.1, False), (0.4, True)])
def test_many_images_of_series_are_a_warning(share: float | None, *, warns: bool) -> None:
    found = outcome(surely(400), report={"queries": "left_out_items", "series_share": share})
    assert ("series" in codes(found)) is warns
    if warns:
        assert found.sentences()[-1].startswith("40 % of the images have a few images of their")


@pytest.mark.parametrize(("flagged", "warns"), [(0.05, False), (0.12, False), (0.9, True)])
def test_evaluation_queries_that_are_unlike_are_named(flagged: float, *, warns: bool) -> None:
    """The share of `match` is small because of the flags, and no other advice would help."""
    measured = {
        "n_queries": 200,
        "recall_at_1": 0.95,
        "orders": {"similarity": {"match_error": 0.0}},
        "verdicts": {"matched": {"match": 0.9 - flagged, "out_of_distribution": flagged}},
    }
    found = outcome(surely(400), measured, alpha=0.05)
    assert ("flagged_often" in codes(found)) is warns
    if warns:
        assert not {"match_seldom_queries", "match_seldom_errors"} & set(codes(found))
        assert "90 % of these queries are flagged" in found.sentences()[-1]
    assert "flagged_often" not in codes(outcome(surely(400), alpha=0.05))
