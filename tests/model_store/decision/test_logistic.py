from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax

from model_store.decision import (
    LabelMeans,
    LogisticModel,
    Recalibration,
    bounded_logit,
    choice_probabilities,
)

LOG_ODDS = st.lists(st.floats(-800, 800), min_size=1, max_size=20)


@given(LOG_ODDS)
def test_a_choice_is_the_softmax_with_none_of_them_at_zero(log_odds: list[float]) -> None:
    expected = softmax(np.r_[log_odds, 0.0])[:-1]
    np.testing.assert_allclose(choice_probabilities(np.array(log_odds)), expected, atol=1e-12)


@given(st.floats(-700, 700))
def test_a_choice_of_one_is_logistic(log_odds: float) -> None:
    got = choice_probabilities(np.array([log_odds]))[0]
    assert got == pytest.approx(expit(log_odds), rel=1e-9, abs=1e-300)


def test_certain_probabilities_have_finite_log_odds() -> None:
    got = bounded_logit(np.array([0.0, 0.25, 1.0]))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(expit(got), [0, 0.25, 1], atol=1e-11)


@given(LOG_ODDS, st.floats(0.1, 5), st.floats(-3, 3))
def test_a_recalibration_keeps_the_order(
    log_odds: list[float], slope: float, intercept: float
) -> None:
    ascending = np.sort(log_odds)
    assert (np.diff(Recalibration(slope, intercept)(ascending)) >= 0).all()
    np.testing.assert_array_equal(Recalibration()(ascending), expit(ascending))


@pytest.mark.parametrize(
    ("slope", "intercept"),
    [(0.0, 0.0), (-1.0, 0.0), (np.nan, 0.0), (np.inf, 0.0), (1.0, np.nan), (1.0, -np.inf)],
)
def test_a_recalibration_that_turns_the_order_is_refused(slope: float, intercept: float) -> None:
    with pytest.raises(ValueError, match="positive slope"):
        Recalibration(slope, intercept)


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.5), (2.0, 0.0)])
def test_a_recalibration_leaves_what_is_certain(slope: float, intercept: float) -> None:
    changed = Recalibration(slope, intercept)
    assert not changed.is_identity
    got = changed.of(np.array([0.0, 0.4, 1.0]))
    assert (got[0], got[2]) == (0, 1)
    assert got[1] == pytest.approx(expit(slope * np.log(0.4 / 0.6) + intercept))


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": np.ones(2)},
        {"centre": np.ones(2)},
        {"scale": np.ones(2)},
        {"scale": np.array([1.0, 0.0, 1.0])},
        {"scale": np.array([1.0, 1.0, -1.0])},
    ],
)
def test_a_model_whose_parts_do_not_go_together_is_refused(changes: dict[str, np.ndarray]) -> None:
    model = LogisticModel(np.ones(3), np.zeros(3), np.ones(3), 0.0)
    with pytest.raises(ValueError, match=r"differ|positive"):
        replace(model, **changes)  # type: ignore[arg-type] # of whatever field


@pytest.mark.parametrize(
    "codes", [[2, -1, 0, 2, -1, 3], [2, 1, 0, 2, 3, 3], [0, 1, 4, 2, 3, 0], [0, 1, 9, 2, -1, 4]]
)
def test_similarities_to_label_means_one_by_one(codes: list[int]) -> None:
    """Of four labels: the fifth and the tenth came after the means were taken."""
    generator = np.random.default_rng(0)
    means = generator.standard_normal((4, 6)).astype(np.float32)
    direction = generator.standard_normal(6).astype(np.float32)
    own = generator.uniform(size=6)
    got = LabelMeans(means).similarities(direction, np.array(codes, dtype=np.int32), own)
    for value, code, itself in zip(got, codes, own, strict=True):
        expected = float(means[code] @ direction) if 0 <= code < 4 else itself
        assert value == pytest.approx(expected, rel=1e-5)
    none = np.full(6, -1, dtype=np.int32)
    np.testing.assert_array_equal(LabelMeans(means[:0]).similarities(direction, none, own), own)
