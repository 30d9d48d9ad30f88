"""Operating points: bounds of errors and false matches, and the thresholds that keep them."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import betaincc, rel_entr
from scipy.stats import beta, binom

from model_store.decision import Evidence, Recalibration, Stream
from model_store.decision.operating import (
    LEAST_THRESHOLD,
    OF_ACCEPTED,
    _nearest,
    at_most,
    errors_allowed,
    label_bound,
    label_p_values,
    upper_bound,
)
from model_store.records import OperatingPoint
from tests.support.calibration_evidence import evidence

DELTA = 0.1


def stream_of(of: Evidence, share: float = 0.05) -> Stream:
    return Stream.of(of, 0.05, share, Recalibration(), DELTA)


def grouped(n: int, n_labels: int, n_present: int = 300) -> Evidence:
    """Absent queries of so many labels, all or none of which get a high probability."""
    absent = np.arange(n_present + n) >= n_present
    label = np.arange(n_present + n) % n_labels
    first = np.where(absent, np.where(label == 0, 0.9, 0.1), 0.99)
    clusters = np.where(absent, 1000 + label, np.arange(n_present + n))
    return evidence(
        n_present,
        n,
        first_probabilities=first,
        no_match_probabilities=1 - first,
        correct=~absent,
        clusters=clusters,
    )


@pytest.mark.parametrize("delta", [0.05, 0.1])
@pytest.mark.parametrize("n_labels", [5, 22, 40])
def test_label_bound_is_where_chernoff_and_hoeffding_reach_delta(
    n_labels: int, delta: float
) -> None:
    for rate in (0.0, 0.1, 0.5):
        bound = label_bound(rate, n_labels, delta)
        p_value = label_p_values(rate, n_labels, np.array([bound]))[0]
        assert p_value == pytest.approx(delta, rel=1e-4)


def test_label_bound_of_no_label_or_of_certainty_is_one() -> None:
    assert label_bound(0.0, 0, 0.1) == label_bound(1.0, 50, 0.1) == 1
    assert label_bound(0.99, 50, 0.1) < 1
    assert label_bound(0.0, 1, 0.1) == pytest.approx(0.9, abs=1e-8)
    assert label_p_values(0.0, 0, np.array([0.9])).tolist() == [1.0]
    assert label_p_values(0.0, 1, np.array([0.9])) == pytest.approx([0.1])


@pytest.mark.parametrize(("k", "n"), [(0, 1), (0, 20), (3, 100), (30, 1000), (19, 20)])
def test_at_most_is_the_binomial_distribution_function(k: int, n: int) -> None:
    rates = np.array([0.0, 1e-9, 0.01, 0.1, 0.5, 0.99, 1.0])
    np.testing.assert_allclose(at_most(k, n, rates), binom.cdf(k, n, rates), rtol=1e-10)


def test_at_most_is_interpolated_between_integers() -> None:
    rates = np.array([0.0, 1e-9, 0.01, 0.1, 0.5, 1.0])
    found = at_most(2.5, 50.5, rates)
    np.testing.assert_allclose(found, betaincc(3.5, 48.0, rates), rtol=1e-10)
    assert at_most(7, 7, rates).tolist() == [1.0] * len(rates)


def test_upper_bound_of_no_query_or_of_certainty_is_one() -> None:
    assert upper_bound(0.0, 0, 0.1) == upper_bound(1.0, 50, 0.1) == 1
    assert upper_bound(0.0, 1, 0.1) == pytest.approx(0.9)
    assert upper_bound(0.5, 2, 0.1) == pytest.approx(beta.ppf(0.9, 2, 1))


def test_errors_allowed_of_no_query_or_of_certainty_are_none() -> None:
    assert errors_allowed(0, 0.5, 0.9) == errors_allowed(50, 1.0, 0.9) == -1
    assert errors_allowed(1, 0.5, 0.9) == 0


def test_fpir_bound_counts_labels_and_not_queries() -> None:
    few, many = grouped(40, 20), grouped(4000, 20)
    for of in (few, many):
        stream = stream_of(of)
        accepted = stream.probabilities >= 0.5
        assert stream.false_match_rate(accepted) == pytest.approx(0.05)
        assert stream.false_match_bound(accepted) == pytest.approx(label_bound(0.05, 20, DELTA))


def test_label_means_weigh_the_same_however_many_queries_a_label_has() -> None:
    absent = np.arange(410) >= 300
    clusters = np.where(absent, np.where(np.arange(410) < 400, 900, np.arange(410)), np.arange(410))
    first = np.where(clusters == 900, 0.9, np.where(absent, 0.1, 0.99))
    of = evidence(300, 110, first_probabilities=first, clusters=clusters)
    stream = stream_of(of)
    assert stream.false_match_rate(first >= 0.5) == pytest.approx(1 / 11)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
def test_p_value_of_an_error_is_that_of_the_likeliest_mixture(share: float) -> None:
    stream = stream_of(evidence(200, 300), share)
    accepted = stream.probabilities >= 0.8
    present = accepted & ~stream.absent
    n, n_wrong = int(present.sum()), int(stream.wrong[present].sum())
    least = 1 - upper_bound(1 - n / 200, 200, OF_ACCEPTED * DELTA)
    rate, products = stream.false_match_rate(accepted), []
    for fpir in np.linspace(1e-3, 1, 2000):
        left = 0.06 - 0.94 * share * fpir / ((1 - share) * least)
        divergence = rel_entr(rate, fpir) + rel_entr(1 - rate, 1 - fpir)
        of_absent = math.exp(-30 * divergence) if fpir > rate else 1.0
        products.append(binom.cdf(n_wrong, n, max(left, 0)) * of_absent)
    wanted = max(products) * (1 - math.log(max(products)))
    p_value = stream.error_p_value(accepted, 0.06)
    assert wanted <= p_value * 1.001
    assert p_value == pytest.approx(wanted, rel=0.1)


def test_p_value_that_a_coarse_search_underflows_is_found_between_its_steps() -> None:
    stream = stream_of(grouped(600, 20), 0.5).multiplied(50, 50)
    assert 0 < stream.error_p_value(stream.probabilities >= 0.5, 0.2) < 1e-100


def test_error_bound_is_the_least_error_that_is_kept() -> None:
    stream = stream_of(evidence(300, 300))
    accepted = stream.probabilities >= 0.9
    bound = stream.error_bound(accepted)
    assert stream.keeps_error(accepted, bound)
    assert not stream.keeps_error(accepted, bound - 2e-5)


def test_queries_that_are_flagged_are_no_matches() -> None:
    of = evidence(300, 300)
    p_values = np.where(of.absent & (np.arange(600) % 3 == 0), 0.01, 0.5)
    flagged = Stream.of(
        replace(of, outlier_p_values=p_values), 0.05, 0.05, Recalibration(), DELTA, alpha=0.05
    )
    everyone = np.ones(600, dtype=np.bool_)
    assert flagged.false_match_rate(everyone) == pytest.approx(2 / 3)
    assert flagged.point_of(everyone, 0.0).coverage == pytest.approx(0.95 + 0.05 * 2 / 3)
    assert flagged.error_bound(everyone) < stream_of(of).error_bound(everyone)


@pytest.mark.slow
@pytest.mark.parametrize(("n_labels", "share"), [(15, 0.05), (40, 0.05), (40, 0.2)])
def test_max_error_holds_where_a_tenth_of_labels_has_a_look_alike(
    n_labels: int, share: float
) -> None:
    """A tenth of all labels is always accepted; the other errors are what probabilities say."""
    n_broken = 0
    for seed in range(300):
        generator = np.random.default_rng(seed)
        rates = np.where(generator.uniform(size=n_labels) < 0.1, 0.9, 0.05)
        absent = np.repeat(rates, 10) > generator.uniform(size=10 * n_labels)
        first = np.r_[generator.beta(20, 1, 300), np.where(absent, 0.95, 0.1)]
        correct = np.r_[generator.uniform(size=300) < first[:300], np.zeros(len(absent), bool)]
        clusters = np.r_[np.arange(300), 1000 + np.repeat(np.arange(n_labels), 10)]
        changes = {"first_probabilities": first, "correct": correct, "clusters": clusters}
        of = evidence(300, len(absent), no_match_probabilities=1 - first, **changes)
        threshold = Stream.of(of, share, share, Recalibration(), DELTA).widest(0.1)
        if threshold is None:
            continue
        given = 1 - threshold**20  # of beta(20, 1); and the mean of 1 - p above the threshold
        wrong = given - (1 - threshold**21) * 20 / 21
        fpir = (0.1 * 0.9 + 0.9 * 0.05) * (threshold <= 0.95)
        of_present, of_absent = (1 - share) * given, share * fpir
        error = ((1 - share) * wrong + of_absent) / (of_present + of_absent)
        n_broken += error > 0.1
    assert n_broken <= binom.ppf(0.999, 300, DELTA)


def test_photographs_of_one_object_are_one_piece_of_evidence() -> None:
    alone, together = (
        stream_of(evidence(400, 100, clusters=np.r_[clusters, 900 + np.arange(100) % 30]), 0.001)
        for clusters in (np.arange(400), np.arange(400) // 8)
    )
    everyone = np.ones(500, dtype=np.bool_)
    assert together.n_objects == 50
    assert together.error_bound(everyone) > alone.error_bound(everyone)


@pytest.mark.slow
def test_error_bound_holds_where_photographs_of_an_object_err_together() -> None:
    exceeded = 0
    for seed in range(300):
        wrong = np.repeat(np.random.default_rng(seed).uniform(size=100) < 0.08, 8)
        of = evidence(
            800, 0, seed, first_probabilities=np.full(800, 0.9), correct=~wrong,
            clusters=np.arange(800) // 8,
        )  # fmt: skip
        exceeded += stream_of(of, 1e-6).error_bound(np.ones(800, dtype=np.bool_)) < 0.08
    assert exceeded <= binom.ppf(0.999, 300, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("n_labels", [15, 25, 40])
def test_fpir_holds_where_a_tenth_of_labels_has_a_look_alike(n_labels: int) -> None:
    """12 % of all labels are always accepted, others never; 10 % are promised."""
    broken = given = 0
    for seed in range(300):
        alike = np.random.default_rng(seed).uniform(size=n_labels) < 0.12
        first = np.r_[np.full(300, 0.99), np.repeat(np.where(alike, 0.95, 0.05), 10)]
        clusters = np.r_[np.arange(300), 1000 + np.repeat(np.arange(n_labels), 10)]
        of = evidence(300, 10 * n_labels, seed, first_probabilities=first, clusters=clusters)
        threshold = stream_of(of).strictest(0.1)
        given += threshold is not None and threshold <= 0.95
        broken += threshold is not None and threshold <= 0.95
    assert given == 0 if n_labels < 22 else broken <= binom.ppf(0.999, 300, DELTA)


def test_nothing_is_promised_of_fpir_below_its_least_number_of_labels() -> None:
    of = [evidence(300, 100, clusters=np.r_[np.arange(300), 900 + np.arange(100) % n])
          for n in (21, 22)]  # fmt: skip
    assert stream_of(of[0]).strictest(0.1) is None
    assert stream_of(of[1]).strictest(0.1) is not None
    assert stream_of(evidence(300, 0)).strictest(0.1) is None


@pytest.mark.parametrize("fpir", [0.1, 0.11, 0.12, 0.2, 0.3])
def test_the_threshold_of_an_fpir_is_the_least_whose_bound_keeps_it(fpir: float) -> None:
    first = np.where(np.arange(600) < 300, 0.99, np.linspace(0, 1, 600))
    stream = stream_of(evidence(300, 300, clusters=np.arange(600), first_probabilities=first))
    threshold = stream.strictest(fpir)
    assert threshold is not None
    assert stream.false_match_bound(stream.probabilities >= threshold) <= fpir
    below = stream.probabilities[stream.absent & (stream.probabilities < threshold)].max()
    assert stream.false_match_bound(stream.probabilities >= below) > fpir
    low = evidence(300, 300, clusters=np.arange(600), first_probabilities=np.linspace(0, 0.4, 600))
    assert stream_of(low).strictest(0.1) == LEAST_THRESHOLD


def test_beyond_all_thresholds_nothing_is_accepted_and_nothing_promised() -> None:
    stream = stream_of(evidence())
    assert stream.point(math.inf) == OperatingPoint(
        threshold=math.inf,
        coverage=0.0,
        error=0.0,
        error_bound=1.0,
        false_match_rate=0.0,
        false_match_bound=0.0,
    )
    assert stream.error_bound(np.zeros(600, dtype=np.bool_)) == 1


def test_a_part_of_the_stream_keeps_the_whole_as_its_measure() -> None:
    """Rates of a size class are shares of all queries, so that those of classes add up."""
    stream = stream_of(evidence(300, 300))
    half = np.arange(600) % 2 == 0
    parts = [stream.at_rows(rows).point(0.7) for rows in (half, ~half)]
    whole = stream.point(0.7)
    assert sum(one.coverage for one in parts) == pytest.approx(whole.coverage)
    rates = [one.false_match_rate for one in parts]
    assert sum(rate for rate in rates if rate is not None) == pytest.approx(whole.false_match_rate)


def test_stream_without_a_match_guarantees_nothing() -> None:
    stream = stream_of(evidence(0, 40))
    point = stream.point(0.0)
    assert point.coverage == pytest.approx(0.05)
    assert point.error_bound == 1


def test_bounds_count_lone_items_as_absent_queries() -> None:
    """A fifth of the items has no query: 0.05 + 0.95 · 0.2 of the stream can only be wrong."""
    of = evidence(300, 300)
    with_lone, without = stream_of(replace(of, lone_share=0.2)), stream_of(of)
    assert with_lone.point(0.7) == replace(without, expected=0.24).point(0.7)
    assert with_lone.point(0.7).error_bound > without.point(0.7).error_bound
    np.testing.assert_array_equal(with_lone.probabilities, without.probabilities)


def test_rivals_raise_a_false_match_rate_to_1_at_most() -> None:
    stream = stream_of(evidence(rivals=1.25))
    assert stream.false_match_rate(np.ones(600, dtype=np.bool_)) == 1


@pytest.mark.parametrize("n_pairs", [30, 10_000])
def test_after_feedback_the_evidence_is_at_most_its_pairs(n_pairs: int) -> None:
    corrected = Recalibration(1.0, -0.2, n_pairs=n_pairs)
    of = Stream.of(evidence(300, 300), 0.05, 0.05, corrected, DELTA)
    accepted = of.probabilities >= 0.9
    error = of.point_of(accepted, 0.9).error
    n = min(n_pairs, int(accepted.sum()))
    assert of.error_bound(accepted) == pytest.approx(upper_bound(error, n, DELTA))


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.25, 0.75])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_as_many_errors_are_allowed_as_the_binomial_test_rejects_with(
    coverage: float, delta: float
) -> None:
    """At ½ two queries reach a quarter and three quarters exactly: that is not above δ."""
    for n in range(1, 25):
        allowed = [k for k in range(n) if binom.cdf(k, n, 1 - coverage) <= delta * (1 + 1e-12)]
        assert errors_allowed(n, coverage, delta) == max(allowed, default=-1)


def test_thresholds_are_those_of_shares_of_the_queries_with_a_match() -> None:
    of = replace(stream_of(evidence(40, 0)), probabilities=np.linspace(0.99, 0.6, 40))
    found = of.thresholds()
    assert found[0][0] == pytest.approx(of.probabilities[1])
    assert found[-1][0] == pytest.approx(0.6)
    for threshold, accepted in found:
        np.testing.assert_array_equal(accepted, of.probabilities >= threshold)
    assert replace(of, probabilities=np.full(40, 0.4)).thresholds() == []
    assert stream_of(evidence(0, 40)).thresholds() == []


def test_the_curve_falls_through_every_distinct_probability() -> None:
    of = replace(stream_of(evidence(5, 0)), probabilities=np.array([0.2, 0.7, 0.7, 0.1, 0.9]))
    assert [point.threshold for point in of.curve()] == [0.9, 0.7, 0.2, 0.1]


def test_a_plan_counts_labels_where_labels_are_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters = np.r_[np.arange(600), 900 + np.arange(300) % 10]
    first = np.where(np.arange(900) < 600, 0.99, 0.1)
    of = evidence(
        600,
        300,
        clusters=clusters,
        first_probabilities=first,
        no_match_probabilities=1 - first,
        correct=np.arange(900) < 600,
    )
    stream = stream_of(of, 0.3)
    assert stream.widest(0.05) is None
    assert stream.multiple(0.05, of_labels=False) is None
    times = stream.multiple(0.05, of_labels=True)
    assert times is not None
    assert stream.multiplied(times, times).widest(0.05) is not None
    monkeypatch.setattr("model_store.decision.operating.MANY_TIMES", times / 1.05)
    assert stream.multiple(0.05, of_labels=True) == times
    monkeypatch.setattr("model_store.decision.operating.MANY_TIMES", times / 1.15)
    assert stream.multiple(0.05, of_labels=True) is None


def test_sequence_allows_for_corrected_probabilities_above_that_of_any_match() -> None:
    stream = stream_of(evidence(300, 300))
    certain = replace(stream, no_match=1 - stream.probabilities)
    doubtful = replace(stream, no_match=np.full(600, 0.99), absence_known=False)
    for one in (certain, doubtful):
        assert one.sequence(0.01)[0][0] < one.thresholds()[0][0]


def test_rivals_change_no_error_bound_where_absent_queries_are_unknown() -> None:
    """Every rate up to 1 is possible, with and without rivals."""
    streams = [
        stream_of(evidence(absence="hidden_trained_labels", rivals=rivals)) for rivals in (1.0, 1.5)
    ]
    bounds = [stream.error_bound(stream.probabilities >= 0.9) for stream in streams]
    assert bounds[0] == bounds[1] < 1


def test_sequence_without_a_success_begins_where_the_least_error_is_rejected() -> None:
    stream = stream_of(evidence(300, 300))
    begins = [sequence[0][0] for sequence in map(stream.sequence, (1e-9, 1e-3))]
    assert begins[0] == begins[1] < stream.thresholds()[0][0]


def test_nearest_of_equal_functions_is_the_first() -> None:
    stream = stream_of(evidence())
    tests = [stream._test(200, 0.05, 0.1)] * 3
    assert [_nearest(tests, DELTA, likely) for likely in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("likely", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.3])
def test_nearest_test_rejects_the_least_error(share: float, *, likely: bool) -> None:
    stream = stream_of(evidence(300, 300), share)
    stream = stream.taking_absent_as_likely() if likely else stream
    counts = [1, 20, 50, 50, 100, 200, 300, 0]
    tests = [stream._test(n, n / 6000, n / 1500) for n in counts]
    level = (1 - OF_ACCEPTED) * DELTA
    rejected = [
        bisect_left(range(10**5), True, key=lambda step: test.p_value(step / 1e5) <= level)
        for test in tests
    ]
    found = {_nearest(tests, level, first) for first in range(len(tests))}
    assert found == {int(np.argmin(rejected))}
