"""What is promised of matches: errors and false matches, by size class, source and share."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from model_store.decision import Evidence, Promises, Recalibration, Stream
from model_store.decision.operating import (
    LEAST_THRESHOLD,
    errors_allowed,
    exact_interval,
    upper_bound,
)
from model_store.decision.probabilities import shifted
from model_store.decision.promises import MOST_UNKNOWN
from tests.support.calibration_evidence import evidence

MANY = np.array([0, 0, 30])
NO_FEEDBACK = Recalibration()


def promises(of: Evidence, **changes: Any) -> Promises:
    terms: dict[str, Any] = {
        "n_labels": MANY,
        "assumed": 0.05,
        "expected": 0.05,
        "feedback": NO_FEEDBACK,
        "max_error": 0.05,
        "max_false_match_rate": None,
        "delta": 0.1,
    }
    return Promises(of, **(terms | changes))


def true_error(threshold: float, share: float = 0.05) -> float:
    """The error of matches from a threshold on, of the evidence's own distributions."""
    fresh = evidence(40_000, 40_000, seed=99)
    weight = np.where(fresh.absent, share, 1 - share)
    accepted = fresh.first_probabilities >= threshold
    return float(np.average(~fresh.correct[accepted], weights=weight[accepted]))


def test_the_bound_is_the_exact_binomial_one_for_whole_numbers() -> None:
    for wrong, n in ((0, 45), (2, 40), (5, 100)):
        exact = binomtest(wrong, n).proportion_ci(confidence_level=0.8, method="exact").high
        assert upper_bound(wrong / n, n, 0.1) == pytest.approx(exact)
    assert upper_bound(0.0, 0, 0.1) == upper_bound(1.0, 10, 0.1) == 1


@pytest.mark.parametrize(("right", "n"), [(0, 10), (7, 10), (10, 10)])
def test_the_interval_of_a_share_is_the_exact_binomial_one(right: int, n: int) -> None:
    exact = binomtest(right, n).proportion_ci(confidence_level=0.9, method="exact")
    found = exact_interval(right / n, n, 0.9)
    np.testing.assert_allclose(found, (exact.low, exact.high), atol=1e-12)


def test_of_no_queries_nothing_is_promised_and_nothing_foretold() -> None:
    assert errors_allowed(0, 0.9, 0.1) == -1
    assert errors_allowed(1000, 1.0, 0.1) == -1, "no number of queries shows that none is"
    assert exact_interval(0.5, 0, 0.9) == (0, 1)


def test_up_to_a_share_of_absent_queries_it_does_not_matter_that_they_are_unknown() -> None:
    unknown = evidence(absence="hidden_trained_labels")
    assert promises(unknown, expected=MOST_UNKNOWN).doubt is None
    doubt = promises(unknown, expected=float(np.nextafter(MOST_UNKNOWN, 1))).doubt
    assert doubt is not None
    assert "no error among matches can be promised" in doubt
    assert promises(evidence(), expected=0.9).doubt is None


def stream_of(of: Evidence) -> Stream:
    return Stream.of(of, 0.05, 0.05, NO_FEEDBACK, 0.1)


def test_a_first_item_of_just_the_threshold_is_a_match() -> None:
    stream = stream_of(evidence())
    threshold = float(np.median(stream.probabilities[~stream.absent]))
    of = evidence(first_probabilities=np.full(600, threshold))
    assert stream_of(of).point(threshold).coverage == pytest.approx(1)
    assert stream_of(of).point(float(np.nextafter(threshold, 1))).coverage == 0
    given = promises(evidence(), max_error=0.1)
    [accepted] = [given.stream.probabilities >= promise.threshold for promise in given.matches[2:]]
    assert given.threshold(2) in given.stream.probabilities
    assert given.point.coverage == pytest.approx(float(given.stream.weights[accepted].sum()))


@pytest.mark.parametrize(("max_error", "max_rate"), [(0.3, 0.1), (0.1, 0.5)])
def test_match_keeps_both_the_error_and_the_fpir_that_are_promised(
    max_error: float, max_rate: float
) -> None:
    """Whichever of the two asks for more."""
    of = evidence(300, 300, clusters=np.arange(600))
    first = np.where(of.absent, np.linspace(0, 1.9, 600) - 0.95, of.first_probabilities)
    of = replace(of, first_probabilities=first)
    by_error = promises(of, max_error=max_error).threshold(2)
    by_rate = promises(of).stream.strictest(max_rate)
    assert by_rate is not None
    assert (by_rate > by_error) is (max_error > max_rate)
    both = promises(of, max_error=max_error, max_false_match_rate=max_rate)
    assert both.threshold(2) == max(by_error, by_rate)
    point = both.matches[2].point
    assert point is not None
    assert point.error_bound <= max_error
    assert point.false_match_bound is not None
    assert point.false_match_bound <= max_rate


@pytest.mark.slow
def test_an_error_is_promised_with_confidence_and_not_on_average() -> None:
    """Of 200 calibrations at most a tenth may exceed it, beyond what chance explains."""
    exceeded = 0
    for seed in range(200):
        threshold = promises(evidence(300, 300, seed)).threshold(2)
        exceeded += math.isfinite(threshold) and true_error(threshold) > 0.05
    assert exceeded <= binom.ppf(0.999, 200, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_an_error_is_promised_with_confidence_where_many_queries_are_absent(share: float) -> None:
    """Probabilities are of the 5 % stream: at the stated share their truth is another."""
    exceeded, n_given = 0, 0
    for seed in range(100):
        of = evidence(300, 300, seed, clusters=np.arange(600))
        given = promises(of, expected=share, max_error=0.1)
        if not given.gives_matches:
            continue
        n_given += 1
        fresh = evidence(20_000, 20_000, seed=99)
        moved = shifted(fresh.first_probabilities, fresh.no_match_probabilities, given.shift)
        accepted = moved >= given.threshold(2)
        weight = np.where(fresh.absent, share, 1 - share)[accepted]
        exceeded += bool(np.average(~fresh.correct[accepted], weights=weight) > 0.1)
    assert n_given > 30
    assert exceeded <= binom.ppf(0.999, n_given, 0.1)


@pytest.mark.slow
def test_false_matches_are_promised_with_confidence() -> None:
    exceeded, n_given = 0, 0
    for seed in range(200):
        # Each absent query of a label of its own: nothing depends on anything.
        of = evidence(300, 300, seed, clusters=np.arange(600))
        given = promises(of, max_error=0.1, max_false_match_rate=0.02)
        fresh = evidence(10, 40_000, seed=98)
        accepted = fresh.first_probabilities[fresh.absent] >= given.threshold(2)
        exceeded += float(accepted.mean()) > 0.02
        point = given.matches[2].point
        if point is not None:  # else the error could not be promised
            n_given += 1
            assert point.false_match_bound is not None
            assert point.false_match_bound <= 0.02
    assert n_given > 150
    assert exceeded <= binom.ppf(0.999, 200, 0.1)


def test_a_calibration_too_small_gives_no_match_and_says_how_many_would_do() -> None:
    given = promises(evidence(40, 100))
    promise = given.matches[2]
    assert promise.threshold == math.inf
    assert promise.point is None
    assert not given.gives_matches
    assert promise.shortfall is not None
    assert "40 calibration queries" in promise.shortfall
    assert "would be enough" in promise.shortfall


def test_a_plan_minds_what_was_wrong_beside_what_the_probabilities_expect() -> None:
    of = evidence(100, 100, 1)
    worse = replace(of, correct=of.correct & (np.arange(200) % 15 > 0))
    plans = [
        Stream.of(one, 0.05, 0.05, NO_FEEDBACK, 0.1).queries_needed(0.12) for one in (of, worse)
    ]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[1] > plans[0]


def test_the_sequence_starts_where_the_error_is_likeliest_to_be_promised() -> None:
    """Whatever was right: else the choice of the first threshold would use up the confidence."""
    for seed in range(5):
        of = evidence(120, 120, seed)
        first = Stream.of(of, 0.05, 0.05, NO_FEEDBACK, 0.1).sequence(0.05)[0]
        wrong = replace(of, correct=np.zeros(240, dtype=bool))
        again = Stream.of(wrong, 0.05, 0.05, NO_FEEDBACK, 0.1).sequence(0.05)[0]
        assert first[0] == again[0]
        strictest = Stream.of(of, 0.05, 0.05, NO_FEEDBACK, 0.1).thresholds()[0]
        assert first[1].sum() > strictest[1].sum(), "36 queries show an error of 0.1 seldom"


def of_labels(n_labels: int, **changes: Any) -> Evidence:
    """Evidence whose absent queries are of so many labels, none of which is ever accepted."""
    rows = np.arange(600)
    clusters = np.where(rows < 300, rows, 700 + rows % n_labels)
    first = np.where(rows < 300, 0.99, 0.05)
    right: dict[str, Any] = {"correct": rows < 300, "first_probabilities": first}
    return evidence(clusters=clusters, no_match_probabilities=1 - first, **right, **changes)


def test_guarantee_is_given_exactly_where_a_size_class_has_a_guaranteed_threshold() -> None:
    given = []
    for seed in range(12):
        classes = np.random.default_rng(seed).integers(0, 3, 300).astype(np.int8)
        for of, terms in (
            (evidence(200, 100, seed, first_classes=classes), {"max_error": 0.1}),
            (evidence(200, 100, seed), {"max_error": 0.08, "max_false_match_rate": 0.2}),
            (of_labels(1 + 9 * (seed % 4)), {"expected": 0.05 + seed / 20}),
        ):
            found = promises(of, **terms)
            guaranteed = [one.guaranteed and one.threshold < math.inf for one in found.matches]
            assert found.gives_guarantee == any(guaranteed), (seed, terms)
            given.append(any(guaranteed))
    assert 5 < sum(given) < len(given) - 5


@pytest.mark.parametrize("absence", ["absent_labels", "hidden_labels"])
def test_too_few_absent_labels_give_matches_without_a_guarantee(absence: str) -> None:
    given = promises(of_labels(1, absence=absence))
    promise = given.matches[2]
    assert given.unknown_rate is not None
    assert given.gives_matches
    assert not given.gives_guarantee
    assert not promise.guaranteed
    assert promise.shortfall is not None
    assert "1 labels of absent calibration queries are too few" in promise.shortfall
    assert "21 more labels are needed" in promise.shortfall
    assert not promises(of_labels(1, absence=absence), expected=0.2).gives_matches


def test_a_share_that_the_labels_do_not_bear_gives_matches_without_a_guarantee() -> None:
    given = promises(of_labels(30), expected=0.3)
    assert given.unknown_rate is None
    assert given.gives_matches
    assert not given.gives_guarantee
    said = given.matches[2].shortfall or ""
    assert "30 labels of absent calibration queries are too few for a share of 0.3" in said
    n_more = int(re.findall(r"at least (\d+) more", said)[0])
    assert promises(of_labels(30 + 2 * n_more), expected=0.3).gives_guarantee
    assert not promises(of_labels(30 + n_more // 4), expected=0.3).gives_guarantee


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_an_operating_point_is_given_only_where_its_error_is_guaranteed(share: float) -> None:
    given, reasons = [], []
    for of in (of_labels(5), of_labels(200), of_labels(30, absence="hidden_trained_labels")):
        asked = promises(of, expected=share)
        for max_error in (0.001, 0.05, 0.1, 0.3):
            point, reason = asked.at(max_error)
            assert (point is None) is (reason is not None)
            if point is None:
                reasons.append(str(reason))
            else:
                given.append(point)
                assert point.error_bound <= max_error
    assert given
    assert any(
        "An error of at most 0.05 among matches cannot be promised" in one for one in reasons
    )


def test_a_share_that_is_too_large_is_named_as_the_cause() -> None:
    """Nearly all first results are right, and no number of labels makes up for the share."""
    of = of_labels(200)
    asked = promises(of, expected=0.99)
    assert not asked.gives_matches
    said = str(asked.matches[2].shortfall)
    assert "too many first results are wrong" not in said
    possible = float(re.findall(r"a share of 0.99 .* too large; a share of ([\d.]+) is", said)[0])
    assert promises(of, expected=possible).gives_guarantee
    assert asked.at(0.05) == (None, asked._error_shortfall(asked.stream, 0.05, ""))


def test_unknown_absence_and_a_large_share_together_give_no_match() -> None:
    few, known_to_the_encoder = of_labels(15), of_labels(30, absence="hidden_trained_labels")
    for of, share, gives in (
        (few, 0.05, True),
        (few, 0.3, True),
        (known_to_the_encoder, 0.05, True),
        (known_to_the_encoder, 0.3, False),
    ):
        assert promises(of, expected=share).gives_matches == gives


def test_an_error_without_a_bound_names_what_is_missing() -> None:
    """More queries with a match would not help."""
    rows = np.arange(600)
    few, of_wrong = of_labels(1), evidence(300, 300, correct=(rows < 300) & (rows % 5 != 0))
    for of, share, reason in (
        (few, 0.2, "but queries without a match have only 1 labels; about "),
        (of_wrong, 0.05, "but too many first results are wrong."),
    ):
        shortfall = promises(of, expected=share).matches[2].shortfall
        assert shortfall is not None
        assert reason in shortfall
        assert "answered queries are needed" not in shortfall
    given = promises(of_wrong)
    assert reason in str(given._promise_of_level("genus", 2, given.stream).shortfall)


def test_feedback_that_lowers_all_probabilities_is_the_cause_and_not_the_first_results() -> None:
    """As that of a stream of which half is absent: the first results are as right as before."""
    lowered = Recalibration(1.0, -3.0, 400)
    of = evidence(correct=np.arange(600) < 300)
    assert promises(of).gives_matches
    never = promises(of, feedback=lowered)
    assert not never.gives_matches
    said = str(never.matches[2].shortfall)
    assert "but the feedback on 400 results lowers the match probabilities" in said
    assert "more than a share of 0.05 of the queries was absent" in said
    wrong = evidence(correct=np.zeros(600, dtype=bool))
    said = str(promises(wrong, feedback=lowered).matches[2].shortfall)
    assert "feedback" not in said, "there were no matches before it"


def test_enough_absent_labels_give_a_guarantee() -> None:
    given = promises(of_labels(22))
    assert given.unknown_rate is None
    assert given.gives_guarantee
    assert given.matches[2].shortfall is None
    assert promises(of_labels(21)).unknown_rate is not None


def test_absent_queries_that_the_encoder_knows_guarantee_nothing() -> None:
    of = of_labels(30, absence="hidden_trained_labels")
    given = promises(of)
    assert given.gives_matches
    assert not given.gives_guarantee
    assert given.point.false_match_rate is given.point.false_match_bound is None
    assert promises(of, expected=0.001).gives_guarantee, "hardly any is absent"
    limited = promises(of, max_false_match_rate=0.5).matches[2]
    assert limited.threshold == math.inf
    assert limited.shortfall is not None
    assert "trained on" in limited.shortfall


def test_an_fpir_is_not_promised_below_its_least_number_of_labels() -> None:
    limited = [promises(of_labels(n), max_false_match_rate=0.1) for n in (21, 22)]
    assert [one.gives_guarantee for one in limited] == [False, True]
    few, enough = (one.matches[2] for one in limited)
    assert few.threshold == math.inf
    assert few.shortfall is not None
    assert "21 labels, but 22 or more" in few.shortfall
    assert math.isfinite(enough.threshold)


def test_hidden_queries_meet_one_label_fewer_than_absent_ones() -> None:
    plain, hidden = (promises(evidence(rivals=rivals)).stream.point(0.3) for rivals in (1.0, 1.25))
    assert plain.false_match_rate is not None
    assert plain.false_match_bound is not None
    assert hidden.false_match_rate == pytest.approx(1.25 * plain.false_match_rate)
    assert hidden.false_match_bound == pytest.approx(1.25 * plain.false_match_bound)
    assert hidden.error > plain.error


@pytest.mark.parametrize(
    ("rare", "n_labels", "whom"),
    [
        (0, [150, 0, 20], "the only one of its label"),
        (1, [0, 150, 20], "a label with 2 to 5 items"),
    ],
)
def test_first_items_of_a_class_without_evidence_get_no_match(
    rare: int, n_labels: list[int], whom: str
) -> None:
    of = evidence(first_classes=np.where(np.arange(600) % 20 == 0, rare, 2).astype(np.int8))
    given = promises(of, n_labels=np.array(n_labels), max_error=0.1)
    assert given.threshold(rare) == math.inf
    assert math.isfinite(given.threshold(2))
    shortfall = given.matches[rare].shortfall
    assert shortfall is not None
    assert whom in shortfall


def test_more_absent_queries_ask_for_more_certainty() -> None:
    of = evidence(1000, 1000)
    few, many = (promises(of, expected=share) for share in (0.05, 0.5))
    # The model assumes 5 %: at 50 % every probability falls, so that fewer are accepted.
    assert many.point.coverage < few.point.coverage
    assert true_error(few.threshold(2)) <= 0.05
    assert many.shift == pytest.approx(math.log(0.05 / 0.95))


def test_a_source_is_promised_by_its_own_queries() -> None:
    """Half of the queries come from a camera with which everything is wrong."""
    base = evidence(1000, 1000)
    bad = np.arange(2000) % 2 == 1
    of = replace(
        base,
        correct=base.correct & ~bad,
        sources=bad.astype(np.int16),
        source_names=["phone", "scanner"],
    )
    assert promises(of.of_source("phone")).gives_matches
    assert not promises(of.of_source("scanner")).gives_matches


def test_after_a_correction_thresholds_follow_the_corrected_probabilities() -> None:
    """The truth lies 1.2 nats below what was calibrated: uncorrected outcomes say nothing of it."""
    of, corrected = evidence(1000, 1000), Recalibration(1.0, -1.2, n_pairs=2000)
    given = promises(of, feedback=corrected)
    fresh = evidence(40_000, 40_000, seed=97)
    now = corrected.of(fresh.first_probabilities)
    weight = np.where(fresh.absent, 0.05, 0.95)
    accepted = now >= given.threshold(2)
    assert accepted.any()
    assert np.average(1 - now[accepted], weights=weight[accepted]) <= 0.05
    # As many pairs as users spoke of, and no more, are the evidence.
    few = promises(of, feedback=replace(corrected, n_pairs=30))
    assert not few.gives_matches


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("delta", [0.1, 0.25, 0.5])
def test_errors_allowed_are_the_most_whose_probability_is_at_most_delta(
    n: int, delta: float
) -> None:
    """With an error of ½ the probabilities are k / 2ⁿ, of which some are δ itself."""
    at_most = [sum(math.comb(n, j) for j in range(k + 1)) / 2**n for k in range(n + 1)]
    wanted = sum(probability <= delta for probability in at_most) - 1
    assert errors_allowed(n, 0.5, delta * (1 + 1e-12)) == wanted


def test_an_error_as_probable_as_delta_itself_is_allowed() -> None:
    assert errors_allowed(1, 0.5, 0.5) == 0
    assert errors_allowed(1, 0.5, math.nextafter(0.5, 0)) == -1


def test_thresholds_fall_to_the_least_one_and_end_there() -> None:
    """Many queries of the least threshold itself, and many below it, are one threshold."""
    first = np.repeat([0.9, LEAST_THRESHOLD, 0.2], 100)
    levels = stream_of(evidence(300, 0, first_probabilities=first)).thresholds()
    found = [threshold for threshold, _ in levels]
    assert sorted(set(found), reverse=True) == [0.9, LEAST_THRESHOLD]
    assert found == sorted(found, reverse=True)
    assert found.count(LEAST_THRESHOLD) == 1


def test_a_match_is_never_unlikelier_than_not() -> None:
    sure = evidence(correct=np.arange(600) < 300)  # all right, whatever the probability
    assert promises(sure, max_error=0.5).threshold(2) >= 0.5


def test_no_threshold_keeps_an_impossible_promise() -> None:
    never = promises(evidence(correct=np.zeros(600, dtype=bool)))
    point, reason = never.at(0.1)
    assert point is None
    assert "too many first results are wrong" in str(reason)
    assert not never.gives_matches


def test_an_error_is_promised_of_the_likeliest_where_they_come_first() -> None:
    """Lists whose first items are right by chance, and whose likeliest labels are as they say."""
    n, generator = 4_000, np.random.default_rng(0)
    likeliest = generator.beta(20, 1, n)
    right = generator.uniform(size=n) < likeliest
    of = evidence(
        n,
        0,
        first_probabilities=np.full(n, 0.5),
        correct=generator.uniform(size=n) < 0.5,
        first_classes=np.zeros(n, dtype=np.int8),
        likeliest_probabilities=likeliest,
        likeliest_correct=right,
    )
    assert of.of_order("similarity") is of
    assert not promises(of, expected=0.001).gives_matches
    given = promises(of.of_order("probability"), expected=0.001)
    accepted = likeliest >= given.threshold(2)
    assert accepted.mean() > 0.3
    assert (~right[accepted]).mean() <= 0.05
    assert given.point.error == pytest.approx((~right[accepted]).mean(), abs=0.01)


def test_an_infinite_threshold_errs_never_and_answers_none() -> None:
    point = stream_of(evidence(50, 50)).point(math.inf)
    assert tuple(point.model_dump().values()) == (math.inf, 0.0, 0.0, 1.0, 0.0, 0.0)
