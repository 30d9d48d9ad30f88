"""Which share of absent queries is used, who named it, and what is estimated from queries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logit

from model_store.decision import Absence, Assessment, Calibration, Decision, Verdict
from model_store.retriever import Bundle
from service.absent_share import DIGITS, ESTIMATED_EVERY, AbsentShareWatch

N_ENOUGH = 2000
"""Served queries that estimate a share to about ± 0.03."""


def watch_of(
    bundle: Bundle, expected: float | None = None, absence: Absence = "absent_labels"
) -> AbsentShareWatch:
    """Return a watch of the digits' calibration, with what is known of absent queries replaced."""
    calibration = calibration_of(bundle)
    evidence = replace(calibration.evidence, absence=absence)
    return AbsentShareWatch(replace(calibration, expected_absent=expected, evidence=evidence))


def calibration_of(bundle: Bundle) -> Calibration:
    calibration = bundle.retriever.calibration
    assert calibration is not None
    return calibration


def decision(no_match: float | None, verdict: Verdict = "ambiguous") -> Decision:
    return Decision(verdict, Assessment(), assumed_no_match=no_match)


def serve(watch: AbsentShareWatch, share: float, n: int = N_ENOUGH) -> None:
    """Let the watch see queries of which a ``share`` is absent, told apart well.

    Their log likelihood ratios are N(±s²/2, s²), as those of two normal distributions are.
    """
    generator, spread = np.random.default_rng(0), 4.0
    absent = generator.uniform(size=n) < share
    ratios = generator.normal(np.where(absent, 1, -1) * spread**2 / 2, spread)
    for value in expit(ratios + logit(watch.state.assumed)):
        watch.observe(decision(float(value)))


class TestWhoIsHeard:
    def test_the_request_before_the_key_before_the_owner_before_the_estimate(
        self, bundle: Bundle
    ) -> None:
        owned = watch_of(bundle, expected=0.2)
        serve(owned, 0.7)
        assert owned.choose(0.9, 0.05) == (0.9, "request")
        assert owned.choose(None, 0.05) == (0.05, "key")
        assert owned.choose(None, None) == (0.2, "bundle")
        nobodys = watch_of(bundle)
        serve(nobodys, 0.7)
        assert nobodys.choose(0.9, 0.05) == (0.9, "request")
        assert nobodys.choose(None, 0.05) == (0.05, "key")
        share, origin = nobodys.choose(None, None)
        assert origin == "estimated"
        assert share == pytest.approx(0.7, abs=0.05)

    def test_what_was_fitted_with_holds_until_enough_queries_were_served(
        self, bundle: Bundle
    ) -> None:
        watch = watch_of(bundle)
        assumed = calibration_of(bundle).assumed_absent
        for n_served in (0, ESTIMATED_EVERY):  # fewer than an estimate is made from
            assert watch.state.n_served == n_served
            assert watch.state.estimated is watch.state.interval is None
            assert watch.choose(None, None) == (assumed, "bundle")
            serve(watch, 0.7, ESTIMATED_EVERY)

    def test_an_estimate_beside_an_owner_s_share_is_shown_only(self, bundle: Bundle) -> None:
        watch = watch_of(bundle, expected=0.2)
        serve(watch, 0.7)
        assert watch.state.estimated == pytest.approx(0.7, abs=0.05)
        assert (watch.state.used, watch.state.is_hint) == (0.2, False)

    def test_where_queries_were_views_the_estimate_is_a_hint(self, bundle: Bundle) -> None:
        watch = watch_of(bundle, absence="near_misses_of_views")
        serve(watch, 0.7)
        state = watch.state
        assert state.estimated == pytest.approx(0.7, abs=0.05)
        assert (state.is_hint, state.basis) == (True, "near_misses_of_views")
        assumed = calibration_of(bundle).assumed_absent
        assert (state.used, watch.choose(None, None)) == (assumed, (assumed, "bundle"))


class TestTheEstimate:
    @pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
    def test_it_finds_the_share_of_a_stream(self, bundle: Bundle, share: float) -> None:
        watch = watch_of(bundle)
        serve(watch, share)
        state = watch.state
        assert state.estimated is not None
        assert state.interval is not None
        assert state.interval[0] <= state.estimated <= state.interval[1]
        assert state.estimated == pytest.approx(share, abs=0.05)
        assert (state.used, state.n_served) == (round(state.estimated, DIGITS), N_ENOUGH)

    def test_it_stays_between_rounds_so_that_equal_queries_get_equal_answers(
        self, bundle: Bundle
    ) -> None:
        watch = watch_of(bundle)
        serve(watch, 0.7)
        before = watch.choose(None, None)
        for _ in range(ESTIMATED_EVERY - 1):
            watch.observe(decision(0.001))
            assert watch.choose(None, None) == before
        watch.observe(decision(0.001))
        assert watch.choose(None, None)[0] < before[0]

    def test_queries_of_another_kind_are_not_counted(self, bundle: Bundle) -> None:
        watch = watch_of(bundle)
        watch.observe(decision(0.9, "out_of_distribution"))
        watch.observe(decision(None, "not_calibrated"))
        assert watch.state.n_served == 0
        watch.observe(decision(0.9))
        assert watch.state.n_served == 1
