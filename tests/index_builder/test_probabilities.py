from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression

from index_builder.calibration import Examples, fit_choice
from index_builder.calibration.probabilities import (
    RIDGE,
    cross_fitted,
    fit_match,
    presence_is_apart,
)
from model_store.decision import SIGNALS, choice_probabilities
from model_store.errors import CalibrationError
from model_store.messages import Absence
from tests.support.narrowing import not_none

RNG = np.random.default_rng(0)


def choosing(n: int, seed: int) -> tuple[Examples, NDArray[np.float64]]:
    """Queries that find up to six labels, of which one or none is chosen; and P(each)."""
    generator = np.random.default_rng(seed)
    counts = generator.integers(1, 7, n)
    starts = np.cumsum(np.r_[0, counts[:-1]])
    values = generator.standard_normal((counts.sum(), 2)) * [2, 0.5] + [1, -3]
    log_odds = np.split(values @ [0.8, 1.5] + 3, starts[1:])
    shares = [softmax(np.r_[one, 0.0]) for one in log_odds]
    matches = [np.arange(len(p) - 1) == generator.choice(len(p), p=p) for p in shares]
    queries = np.arange(n)
    found = np.concatenate(matches)
    examples = Examples(
        values,
        found,
        np.zeros(len(found), dtype=np.int32),
        np.ones(len(found), dtype=np.int64),
        starts,
        np.ones(n),
        queries,
        np.zeros(n, dtype=bool),
        np.zeros(n, dtype=np.int32),
    )
    return examples, np.concatenate([p[:-1] for p in shares])


def test_the_choice_between_labels_finds_the_truth() -> None:
    examples, truth = choosing(20_000, seed=0)
    log_odds = fit_choice(examples).log_odds(examples.values)
    got = [choice_probabilities(one) for one in np.split(log_odds, examples.starts[1:])]
    assert np.abs(np.concatenate(got) - truth).mean() < 0.01


def test_the_choice_is_at_a_minimum_of_its_loss() -> None:
    """Query by query, with SciPy's own differences."""
    examples = replace(choosing(60, seed=1)[0], weights=RNG.uniform(0.2, 2, 60))
    fitted = fit_choice(examples)
    values = (examples.values - fitted.centre) / fitted.scale

    def loss(parameters: NDArray[np.float64]) -> float:
        total = 0.0
        for query, start in enumerate(examples.starts):
            rows = slice(start, start + examples.counts[query])
            log_odds = values[rows] @ parameters[:2] + parameters[2]
            shares = softmax(np.r_[log_odds, 0.0])
            chosen = np.r_[examples.matches[rows], not examples.matches[rows].any()]
            total -= examples.weights[query] * np.log(shares[chosen][0])
        ridge = RIDGE * float(parameters[:2] @ parameters[:2])
        return float(total / examples.weights.sum()) + ridge

    best = minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-8}).x
    np.testing.assert_allclose(np.r_[fitted.weights, fitted.intercept], best, atol=1e-3)


def test_a_fit_to_fewer_signals_is_that_without_the_others() -> None:
    examples, _ = choosing(2000, seed=3)
    fewer = fit_choice(examples, 1)
    alone = fit_choice(replace(examples, values=examples.values[:, :1]))
    assert fewer.weights[1] == 0
    np.testing.assert_allclose(fewer.weights[:1], alone.weights, atol=1e-6)
    assert fewer.intercept == pytest.approx(alone.intercept, abs=1e-6)


def test_as_many_signals_are_taken_as_foretell_labels_that_were_left_out() -> None:
    """The second signal tells each label from the others, and of another label nothing."""
    examples, _ = choosing(400, seed=4)
    labels = np.arange(400, dtype=np.int32) % 20
    of_label = np.random.default_rng(1).standard_normal(20)[labels][examples.queries]
    values = np.column_stack([examples.values[:, 1], of_label * (1 + examples.matches)])
    fit = cross_fitted(replace(examples, values=values, labels=labels), 0, (1, 2))
    assert fit.n_signals == 1
    useful = replace(examples, values=examples.values[:, ::-1], labels=labels)
    assert cross_fitted(useful, 0, (1, 2)).n_signals == 2


@pytest.mark.parametrize("seed", [5, 6, 7, 8])
def test_a_signal_of_noise_is_not_taken_though_the_loss_is_smaller_with_it(seed: int) -> None:
    examples, _ = choosing(400, seed=seed)
    noise = np.random.default_rng(seed).standard_normal(len(examples.values))
    labels = np.arange(400, dtype=np.int32) % 20
    values = np.column_stack([examples.values[:, 1], noise])
    examples = replace(examples, values=values, labels=labels)
    losses = [cross_fitted(examples, 0, (n,)).losses.mean() for n in (1, 2)]
    assert losses[1] < losses[0]
    assert cross_fitted(examples, 0, (1, 2)).n_signals == 1


def test_queries_of_one_label_are_left_out_together_and_one_label_is_refused() -> None:
    examples, _ = choosing(100, seed=6)
    labels = np.arange(100, dtype=np.int32) % 7
    folds = cross_fitted(replace(examples, labels=labels), 0).folds
    assert all(len(np.unique(folds[labels == label])) == 1 for label in range(7))
    with pytest.raises(CalibrationError, match="have the same label"):
        cross_fitted(examples, 0)


def test_a_signal_that_was_always_the_same_says_nothing_of_another_value() -> None:
    """Ten labels of an item each: each has one vote of ten, until one of them gets another item."""
    examples = replace(choosing(300, seed=5)[0], weights=RNG.uniform(0.2, 2, 300))
    values = np.column_stack([examples.values, np.full(len(examples.values), np.log(1.5 / 9.5))])
    fitted = fit_choice(replace(examples, values=values))
    other = values + np.array([0, 0, np.log(2.5 / 8.5) - np.log(1.5 / 9.5)])
    np.testing.assert_allclose(fitted.log_odds(other), fitted.log_odds(values), atol=1e-6)


def test_fit_choice_makes_no_label_unlikely_because_its_item_is_near() -> None:
    """A fit without the limit has a negative weight, and a copy of an item is no match of it."""
    examples, _ = choosing(2000, seed=10)
    ratio = 0.3 * RNG.standard_normal(len(examples.values)) - 0.9 * examples.matches
    fitted = fit_choice(replace(examples, values=np.column_stack([examples.values, ratio])))
    without = fit_choice(examples)
    assert fitted.weights[SIGNALS.index("log_distance_ratio")] == 0
    np.testing.assert_allclose(fitted.weights[:2], without.weights, atol=1e-4)
    helpful = fit_choice(replace(examples, values=np.column_stack([examples.values, -ratio])))
    assert helpful.weights[2] > 0.5


def test_some_queries_are_all_that_they_were() -> None:
    examples, _ = choosing(30, seed=2)
    some = examples.at(np.array([4, 17, 29]))
    for place, query in enumerate([4, 17, 29]):
        rows, of = some.queries == place, examples.queries == query
        np.testing.assert_array_equal(some.values[rows], examples.values[of])
        np.testing.assert_array_equal(some.matches[rows], examples.matches[of])
        np.testing.assert_array_equal(some.places[rows], np.arange(of.sum()))


def test_absent_queries_are_judged_by_fits_that_know_no_query_of_their_label() -> None:
    """Of each label the absent queries have a value of their own, which a fit could learn."""
    generator = np.random.default_rng(0)
    n_labels, of_label = 10, 30
    labels = np.repeat(np.arange(n_labels), of_label)
    n = len(labels)
    absent = np.arange(n) % 2 == 0
    own = np.eye(n_labels)[labels] * absent[:, None]
    values = np.column_stack([generator.standard_normal(n), own])
    examples = Examples(
        values,
        ~absent,
        np.zeros(n, dtype=np.int32),
        np.ones(n, dtype=np.int64),
        np.arange(n),
        np.ones(n),
        np.arange(n),
        absent,
        labels.astype(np.int32),
    )
    probabilities = cross_fitted(examples, seed=0, n_signals=(11,)).probabilities
    assert probabilities[absent].mean() > 0.5  # a label not seen tells nothing
    leaking = fit_choice(examples, 11).log_odds(values)
    assert leaking[absent].mean() < -1  # a fit that has seen it knows it


def test_a_label_with_most_matched_queries_is_split_between_folds() -> None:
    """Without it, a fit would know few matched queries, and other labels only."""
    examples, _ = choosing(400, seed=7)
    labels = np.where(np.arange(400) < 300, 0, np.arange(400) % 10).astype(np.int32)
    absent = np.arange(400) >= 350
    large = replace(examples, labels=labels, absent=absent, clusters=np.arange(400) // 3)
    folds = cross_fitted(large, 0).folds
    assert len(np.unique(folds[:300])) == 5
    assert all(len(np.unique(folds[one : one + 3])) == 1 for one in range(0, 300, 3))
    others = [folds[300:350][labels[300:350] == label] for label in range(1, 10)]
    assert all(len(np.unique(one)) == 1 for one in others)


def test_absent_queries_weigh_the_same_share_in_each_fit() -> None:
    examples, _ = choosing(100, seed=8)
    some = replace(examples, absent=np.arange(100) < 20).of_share(0.3)
    assert some.absent_share == pytest.approx(0.3)
    assert some.at(np.arange(10, 40)).absent_share != pytest.approx(0.3)
    assert some.at(np.arange(10, 40)).of_share(0.3).absent_share == pytest.approx(0.3)
    assert (some.weights[20:] == examples.weights[20:]).all()


def test_presence_has_a_fit_of_its_own_to_two_signals_of_the_nearest_label() -> None:
    """More labels alike, and other signals, do not change P(match)."""
    examples, _ = choosing(2000, seed=9)
    wider = replace(examples, values=np.column_stack([examples.values, examples.values[:, 0] ** 2]))
    model = fit_match(wider, 3, apart=True)
    nearest = wider.values[wider.starts]
    there = np.logical_or.reduceat(wider.matches, wider.starts)
    presence = not_none(model.presence)
    fitted = presence.log_odds(nearest)
    # A logistic regression has residuals of mean 0, but for the penalty; scikit-learn agrees.
    other = LogisticRegression(C=1 / (2 * RIDGE * len(there)), tol=1e-8)
    other.fit((nearest[:, :2] - presence.centre[:2]) / presence.scale[:2], there)
    np.testing.assert_allclose(presence.weights[:2], other.coef_[0], atol=1e-3)
    assert presence.weights[2] == 0
    alone, among_six = (
        choice_probabilities(model.of_list(nearest[:1].repeat(n, axis=0))) for n in (1, 6)
    )
    assert among_six.sum() == pytest.approx(expit(fitted[0])) == alone.sum()
    np.testing.assert_allclose(among_six, among_six[0])
    chosen = fit_choice(wider, 3).log_odds(wider.values[:2])
    assert np.diff(model.of_list(wider.values[:2])) == pytest.approx(np.diff(chosen))


def test_labels_after_the_list_do_not_change_those_in_the_list() -> None:
    model = fit_match(choosing(200, seed=3)[0], 2, apart=True)
    values = RNG.standard_normal((5, 2))
    np.testing.assert_array_equal(model.of_list(values, 3)[:3], model.of_list(values[:3]))


@pytest.mark.parametrize(
    ("absence", "n_labels", "apart"),
    [("hidden_labels", 14, True), ("hidden_labels", 15, False), ("absent_labels", 7, False)],
)
def test_presence_is_apart_if_few_labels_are_hidden(
    absence: Absence, n_labels: int, apart: bool
) -> None:
    examples, _ = choosing(60, seed=0)
    labels = np.arange(60, dtype=np.int32) % n_labels
    some = replace(examples, labels=labels, absent=np.ones(60, dtype=bool))
    assert presence_is_apart(absence, some) == apart
