"""Labels among the items found: probabilities that rounding leaves what they are."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from model_store.decision import MatchModel, Recalibration, Terms, choice_probabilities
from model_store.decision.outliers import label_sums
from model_store.decision.verdict import FoundLabels, MatchProbabilities


def test_label_sums_count_every_item_once_however_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    directions = generator.standard_normal((10, 3))
    codes = generator.integers(-1, 2, 10).astype(np.int32)
    gallery: Any = SimpleNamespace(
        n_items=10, dim=3, labels=["a", "b"], directions=directions.__getitem__
    )
    monkeypatch.setitem(label_sums.__globals__, "_ROWS", 4)
    sums = label_sums(gallery, codes)
    for code in (0, 1):
        np.testing.assert_allclose(sums[code], directions[codes == code].sum(axis=0))


LISTED = np.array([40.0, 39.5, 33.0])
"""Log-odds whose probabilities, rounded, are together more than 1."""


def test_probabilities_lie_between_0_and_1_however_they_are_rounded() -> None:
    assert choice_probabilities(LISTED).sum() > 1
    model = MatchModel(np.ones(1), np.zeros(1), np.ones(1), 0.0)
    calibration: Any = SimpleNamespace(match=model, feedback=Recalibration())
    log_odds = np.r_[LISTED, 10.0]
    found = FoundLabels(
        np.arange(4), np.eye(4, dtype=bool), log_odds[:, None], np.zeros(4, np.int8), n_in_list=3
    )
    for passing in (None, [0, 1, 2, 3], [0, 1, 2], [3]):
        allowed = None if passing is None else np.isin(np.arange(4), passing)
        terms = Terms(alpha=0.05, filter_means="show")
        of = MatchProbabilities.of(
            calibration, cast("Any", SimpleNamespace(shift=0)), found, allowed, terms
        )
        assert ((of.fitted >= 0) & (of.fitted <= 1)).all()
        assert ((of.final >= 0) & (of.final <= 1)).all()
        assert 0 <= of.nothing <= 1


def probabilities_of(log_odds: np.ndarray, filter_means: str, *passing: bool) -> MatchProbabilities:
    n = len(log_odds)
    model = MatchModel(np.ones(1), np.zeros(1), np.ones(1), 0.0)
    calibration: Any = SimpleNamespace(match=model, feedback=Recalibration())
    found = FoundLabels(
        np.arange(n), np.eye(n, dtype=bool), log_odds[:, None], np.zeros(n, np.int8), n_in_list=n
    )
    terms = Terms(alpha=0.05, filter_means=cast("Any", filter_means))
    promises: Any = SimpleNamespace(shift=0)
    return MatchProbabilities.of(calibration, promises, found, np.array(passing), terms)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_never_less_likely_than_0_however_sums_are_rounded(seed: int) -> None:
    log_odds = np.random.default_rng(seed).uniform(30, 45, 9)
    assert probabilities_of(log_odds, "show", *[True] * 9).nothing >= 0


def test_probabilities_are_finite_where_a_known_filter_passes_no_label_that_is_found() -> None:
    of = probabilities_of(np.array([800.0, 1.0]), "known", False, False)
    assert of.nothing == 0
    assert np.isfinite(of.final).all()


def test_what_cannot_be_a_match_has_no_probability_and_the_others_are_conditioned_on_this() -> None:
    n = 3
    model = MatchModel(np.ones(1), np.zeros(1), np.ones(1), 0.0)
    calibration: Any = SimpleNamespace(match=model, feedback=Recalibration())
    promises: Any = SimpleNamespace(shift=0)
    values, classes = np.array([[2.0], [1.0], [0.0]]), np.zeros(n, np.int8)
    found = FoundLabels(np.arange(n), np.eye(n, dtype=bool), values, classes, n_in_list=n)
    lost = replace(found, possible=np.array([False, True, True]))
    for filter_means, allowed in (("show", None), ("known", np.diag([True, False, True]))):
        terms = Terms(alpha=0.05, filter_means=cast("Any", filter_means))
        plain, of = (
            MatchProbabilities.of(calibration, promises, one, allowed, terms)
            for one in (found, lost)
        )
        assert of.final[0] == 0
        np.testing.assert_allclose(of.final[1:] / of.nothing, plain.final[1:] / plain.nothing)
        np.testing.assert_allclose(of.known * of.expected[1:], of.final[1:])
        passing = np.ones(n, dtype=bool) if allowed is None else allowed.diagonal()
        assert of.nothing + of.final[passing].sum() == pytest.approx(1)
