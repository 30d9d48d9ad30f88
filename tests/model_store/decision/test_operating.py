"""Operating points of a few queries, each written out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

from model_store.decision.operating import (
    OperatingPoint,
    Stream,
    errors_allowed,
    next_share,
    upper_bound,
)


def stream(
    absent: tuple[bool, ...] = (False, False, False, True, True), rivals: float = 3
) -> Stream:
    """Five queries of different weight and evidence; a first item of an absent one is wrong."""
    places = np.arange(5)
    return Stream(
        probabilities=0.9 - places / 10,
        wrong=np.maximum(places == 1, absent).astype(float),
        absent=np.array(absent),
        weights=np.array([0.3, 0.2, 0.25, 0.15, 0.1]),
        design_effects=np.array([0.01, 0.02, 0.03, 0.02, 0.05]),
        rivals=rivals,
        most_effective=math.inf,
        delta=0.1,
    )


def subsets() -> Iterator[np.ndarray]:
    yield from (np.array(chosen) for chosen in product([False, True], repeat=5))


def bound_of(of: Stream, accepted: np.ndarray) -> float:
    """The error at which the inequality of `Stream.error_bound` turns, found by bisection."""
    right, absent = accepted & ~of.absent, accepted & of.absent
    if not right.any():
        return 1.0
    weight, n_absent = of.weights[right].sum(), of.absent.sum()
    e, f = of.wrong[right].mean(), absent.sum() / n_absent if n_absent else 0.0
    all_absent = of.rivals * of.weights[of.absent].sum()
    n, n_of_absent = (1 / of.design_effects[rows] for rows in (right, of.absent))
    open_error = weight * (upper_bound(e, n.sum(), 0.1) - e)
    open_rate = all_absent * (upper_bound(f, n_of_absent.sum(), 0.1) - f)

    def excess(u: float) -> float:
        less = weight * (e - 1 + u) + all_absent * f * u
        return float(less + math.hypot(open_error, open_rate * u))

    return 1 - float(brentq(excess, 0, 1, xtol=1e-14)) if excess(0) < 0 else 1.0


@pytest.mark.parametrize("rivals", [1, 3])
@pytest.mark.parametrize("n_absent", [0, 1, 2, 5])
def test_the_bound_of_the_error_is_where_its_inequality_turns(n_absent: int, rivals: float) -> None:
    of = stream((False,) * (5 - n_absent) + (True,) * n_absent, rivals)
    for accepted in subsets():
        assert of.error_bound(accepted) == pytest.approx(bound_of(of, accepted), abs=1e-9)


def test_a_point_is_of_those_who_are_accepted() -> None:
    of = stream()
    for accepted in subsets():
        rows = np.flatnonzero(accepted)
        weight = [of.weights[row] * (3 if of.absent[row] else 1) for row in rows]
        coverage = sum(weight)
        wrong = sum(one for one, row in zip(weight, rows, strict=True) if of.wrong[row])
        share, n = sum(of.absent[rows]) / 2, 1 / 0.02 + 1 / 0.05
        wanted = (
            0.55,
            coverage,
            wrong / coverage if coverage else 0.0,
            of.error_bound(accepted),
            min(3 * next_share(share, n), 1),
            min(3 * upper_bound(share, n, 0.1), 1),
        )
        assert astuple(of.point_of(accepted, 0.55)) == pytest.approx(wanted)


def test_beyond_all_thresholds_nothing_is_accepted_and_nothing_promised() -> None:
    wanted = OperatingPoint(math.inf, 0.0, 0.0, 1.0, 0.0, 0.0)
    assert stream().point(math.inf) == wanted
    nobody = np.zeros(5, dtype=np.bool_)
    assert stream().n_effective(nobody) == 0


def test_the_worth_of_queries_is_kishs_and_at_most_that_of_the_feedback() -> None:
    of = stream()
    for accepted in list(subsets())[1:]:
        w, d = of.weights[accepted], of.design_effects[accepted]
        kish = sum(w) ** 2 / sum(w**2 * d)
        assert of.n_effective(accepted) == pytest.approx(kish)
        assert replace(of, most_effective=60.0).n_effective(accepted) == pytest.approx(
            min(kish, 60)
        )
    assert of.n_absent_effective == pytest.approx(1 / 0.02 + 1 / 0.05)


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.25, 0.75])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_as_many_errors_are_allowed_as_the_binomial_test_rejects_with(
    coverage: float, delta: float
) -> None:
    """At ½ two queries reach a quarter and three quarters exactly: that is not above δ."""
    for n in range(1, 25):
        allowed = [k for k in range(n) if binom.cdf(k, n, 1 - coverage) <= delta * (1 + 1e-12)]
        assert errors_allowed(n, n, coverage, delta) == max(allowed, default=-1)
        assert errors_allowed(3 * n, n + 0.5, coverage, delta) == (
            math.floor(max(allowed) * 3 * n / (n + 0.5)) if allowed else -1
        )


def test_thresholds_are_those_of_shares_of_the_queries_with_a_match() -> None:
    of = stream()
    found = of.thresholds(np.array([1 / 3, 0.6, 2 / 3, 1.0]))
    assert [threshold for threshold, _ in found] == pytest.approx([0.9, 0.8, 0.7])
    for threshold, accepted in found:
        np.testing.assert_array_equal(accepted, of.probabilities >= threshold)
    doubtful = replace(of, probabilities=np.array([0.9, 0.5, 0.4, 0.8, 0.6]))
    assert [threshold for threshold, _ in doubtful.thresholds()] == [0.9, 0.5]
    assert stream((True,) * 5).thresholds() == []
    assert replace(of, probabilities=np.full(5, 0.4)).thresholds() == []


def test_the_curve_falls_through_every_distinct_probability() -> None:
    of = replace(stream(), probabilities=np.array([0.2, 0.7, 0.7, 0.1, 0.9]))
    assert [point.threshold for point in of.curve()] == [0.9, 0.7, 0.2, 0.1]


@pytest.mark.parametrize("max_error", [0.1, 0.2, 0.3, 0.4, 0.5])
def test_a_plan_is_the_least_number_that_the_binomial_test_is_likely_to_pass(
    max_error: float,
) -> None:
    """All are accepted, and 0.01 of them are expected to be wrong."""
    of = replace(
        stream((False,) * 5),
        probabilities=np.full(5, 0.99),
        wrong=np.full(5, 0.01),
        weights=np.full(5, 0.2),
        design_effects=np.ones(5),
    )

    def passes(n: int) -> bool:
        allowed = [k for k in range(n) if binom.cdf(k, n, max_error) <= 0.1]
        return bool(allowed and binom.cdf(max(allowed), n, 0.01) >= 0.8)

    least = next(n for n in range(1, 100) if passes(n))
    assert of.queries_needed(max_error) in (least, least + 1)
