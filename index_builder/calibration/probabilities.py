"""Fitting match probabilities and the intervals around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import isotonic_regression
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold

from index_builder.observation import Observed
from model_store.decision import SIGNALS, LogisticModel, VennAbers

FITTED_RANKS = np.array([0, 1, 2, 4, 9])
"""Places in the result list that the match probability is fitted on."""

N_FOLDS = 5

N_KNOTS = 400
"""Rows of a Venn-Abers table."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Group:
    """Queries of one kind, with their outlier scores.

    Attributes
    ----------
    observed : B queries.
    outlier_scores : (B,).
    weight : of each query.
    sources : (B,) what each was made from; queries of one source are left out together.
    """

    observed: Observed
    outlier_scores: Floats
    weight: float
    sources: NDArray[np.int64]

    def at(self, rows: NDArray[np.int64]) -> Group:
        """Some of the queries."""
        return Group(
            self.observed.at(rows), self.outlier_scores[rows], self.weight, self.sources[rows]
        )

    def signals(self, ranks: NDArray[np.int64]) -> Floats:
        """Signals (B, m, S) at ``ranks`` (m,), or (B, m) where they differ from query to query."""
        return self.observed.signals(ranks, self.outlier_scores)


@dataclass(frozen=True, slots=True)
class Examples:
    """Pairs of a query and one of its candidates: signals, outcome, weight, and whose they are.

    Attributes
    ----------
    values : (N, S)
    matches, weights, queries, is_first : (N,)
    sources : (n_queries,), see `Group`.
    """

    values: Floats
    matches: Bools
    weights: Floats
    queries: NDArray[np.int64]
    is_first: Bools
    sources: NDArray[np.int64]

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Examples:
        """The pairs at `FITTED_RANKS`.

        Of each query's weight half lies on its first item, the one that a verdict is about.
        """
        n_candidates = min(group.observed.similarities.shape[1] for group in groups)
        ranks = FITTED_RANKS[n_candidates > FITTED_RANKS]
        of_rank = np.where(ranks == 0, 1.0, 1.0 / max(len(ranks) - 1, 1))
        n_queries = sum(len(group.observed) for group in groups)
        return cls(
            np.concatenate([g.signals(ranks).reshape(-1, len(SIGNALS)) for g in groups]),
            np.concatenate([g.observed.matches[:, ranks].ravel() for g in groups]),
            np.concatenate([np.tile(of_rank * g.weight, len(g.observed)) for g in groups]),
            np.repeat(np.arange(n_queries), len(ranks)),
            np.tile(ranks == 0, n_queries),
            np.concatenate([g.sources for g in groups]),
        )

    def fitted(self) -> LogisticModel:
        """The match probability, fitted on all of them."""
        return fit_logistic(self.values, self.matches, self.weights)


@dataclass(frozen=True, slots=True)
class CrossFit:
    """Fits of the match probability, and which of them has not seen a query.

    Attributes
    ----------
    models : one for each fold.
    folds : (N,) fold of each query.
    """

    models: tuple[LogisticModel, ...]
    folds: NDArray[np.int64]

    @classmethod
    def of(cls, examples: Examples, seed: int) -> CrossFit:
        """Leave each fold of the queries out once."""
        first_matches = examples.matches[examples.is_first]
        folds = np.empty(len(first_matches), dtype=np.int64)
        models = []
        splits = StratifiedGroupKFold(N_FOLDS, shuffle=True, random_state=seed)
        divided = splits.split(first_matches, first_matches, examples.sources)
        for fold, (kept, left_out) in enumerate(divided):
            rows = np.isin(examples.queries, kept)
            folds[left_out] = fold
            models.append(
                fit_logistic(examples.values[rows], examples.matches[rows], examples.weights[rows])
            )
        return cls(tuple(models), folds)

    def log_odds(self, values: Floats, queries: NDArray[np.int64]) -> Floats:
        """Log-odds (n, …) of ``values`` (n, …, S), each by the fit that has not seen its query."""
        log_odds = np.empty(values.shape[:-1])
        for fold, model in enumerate(self.models):
            rows = self.folds[queries] == fold
            log_odds[rows] = model.log_odds(values[rows])
        return log_odds


def fit_logistic(values: Floats, outcomes: Bools, weights: Floats) -> LogisticModel:
    """Weighted logistic regression of ``outcomes`` (N,) on standardised ``values`` (N, M)."""
    centre = np.average(values, axis=0, weights=weights)
    scale = np.sqrt(np.average((values - centre) ** 2, axis=0, weights=weights))
    scale = np.where(scale > 0, scale, 1.0)
    if outcomes.all() or not outcomes.any():  # nothing to separate: the smoothed rate itself
        rate = (weights[outcomes].sum() + 1) / (weights.sum() + 2)
        return LogisticModel(np.zeros(len(scale)), centre, scale, float(np.log(rate / (1 - rate))))
    fitted = LogisticRegression(C=1.0, max_iter=1000).fit(
        (values - centre) / scale, outcomes, sample_weight=weights
    )
    return LogisticModel(fitted.coef_[0], centre, scale, float(fitted.intercept_[0]))


def fit_venn_abers(log_odds: Floats, outcomes: Bools, weights: Floats) -> VennAbers:
    """Tabulate the inductive Venn-Abers predictor of weighted examples.

    Parameters
    ----------
    log_odds : (N,) by fits that have not seen the example.
    outcomes, weights : (N,); a new example weighs one.
    """
    distinct, place = np.unique(log_odds, return_inverse=True)
    mass = np.bincount(place, weights)
    positives = np.bincount(place, weights * outcomes)
    knots = np.unique(np.linspace(0, len(distinct) - 1, N_KNOTS).round().astype(int))
    bounds = np.empty((2, len(knots)))
    for added in (0, 1):
        for row, knot in enumerate(knots):
            with_new, new_mass = positives.copy(), mass.copy()
            with_new[knot] += added
            new_mass[knot] += 1
            fitted = isotonic_regression(with_new / new_mass, sample_weight=new_mass)
            bounds[added, row] = fitted[knot]
    return VennAbers(distinct[knots], bounds[0], bounds[1])
