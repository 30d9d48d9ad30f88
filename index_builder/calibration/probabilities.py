"""Fitting match probabilities and the intervals around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression, minimize

from index_builder.calibration.folds import N_FOLDS, stratified_folds
from index_builder.calibration.retrieval import RetrievedQueries
from model_store.decision import SIGNALS, LogisticModel, VennAbers
from model_store.verdicts import Absence

N_KNOTS = 400
"""Rows of a Venn-Abers table."""

RIDGE = 2e-3
"""Times the squared weights, beside a mean loss: a hundred queries do not bear ten free weights."""

Limits = Sequence[tuple[float | None, float | None]]

_STAND_INS_ONLY: tuple[Absence, ...] = ("hidden_trained_labels", "near_misses_of_views")
"""Those of which a fit may follow no more than the signs of signals, see `BY_SIGN`."""

_LESS, _MORE, _UNUSED = (None, 0.0), (0.0, None), (0.0, 0.0)

_SIGNS: Mapping[str, tuple[float | None, float | None]] = {
    "log_distance": _LESS,
    "log_distance_ratio": _MORE,
    "mean_margin": _MORE,
    "log_uncertainty": _LESS,
    "outlier_score": _LESS,
}

BY_SIGN: Limits = tuple(_SIGNS.get(name, _UNUSED) for name in SIGNALS)
"""Limits of a fit whose absent queries say little of others: a match is no less likely the nearer
the item, and the more ordinary the query. An encoder that has learned a hidden label has moved its
images away from all others, so that no neighbours agree; those of a label that it has not learned
lie among others, whose neighbours do agree. So neither how many agree nor how near the 50th is says
of the one what it says of the other. Chosen in view of Fashion-MNIST, MNIST, CIFAR-10 and digits,
with two labels each that the encoder had not seen. Where matched queries are views and absent ones
the pictures themselves, a free fit learns what tells a view from a picture: near misses of
photographs and of drawings were called matches more often than is true."""

_ALONE: Mapping[str, tuple[float | None, float | None]] = {
    "log_distance": _LESS,
    "log_distance_50": (None, None),
    "log_uncertainty": _LESS,
    "outlier_score": _LESS,
}

ALONE: Limits = tuple(_ALONE.get(name, _UNUSED) for name in SIGNALS)
"""Limits of a fit whose absent queries find one label: of two, one is hidden from them. All their
neighbours agree, and no label's mean is nearer than another's, where an absent query that is served
finds two labels. So nothing that compares labels says of the one what it says of the other. Chosen
in view of simulated worlds of two labels that no benchmark reports."""

_MOST_LOG_ODDS = 20.0
"""The largest magnitude of the intercept: where every query has a match, the data do not bound
it."""

_LEAST_SPREAD = 1e-9
"""The least standard deviation of a signal that is any: of one that is always the same, rounding
leaves about 1e-14, and by that unit another value of it would be certain proof."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Queries of one kind, with their outlier scores.

    Attributes
    ----------
    observed : B queries.
    outlier_scores : (B,).
    weight : of each query.
    clusters : (B,) queries of one cluster are left out together.
    absent : whether nothing in the gallery matches them.
    """

    observed: RetrievedQueries
    outlier_scores: Floats
    weight: float
    clusters: NDArray[np.int64]
    absent: bool


@dataclass(frozen=True, slots=True)
class Examples:
    """The labels that queries find, each by its nearest item.

    Attributes
    ----------
    values : (N, S) signals; those of one query stand together, nearest first.
    matches : (N,) whether the label is the query's own.
    codes : (N,) of the labels.
    sizes : (N,) items of the label that the query could find.
    starts : (Q,) row of each query's nearest label.
    weights, clusters, absent : (Q,), see `Group`.
    labels : (Q,) of each query's own label, see `RetrievedQueries.codes`.
    """

    values: Floats
    matches: Bools
    codes: NDArray[np.int32]
    sizes: Integers
    starts: Integers
    weights: Floats
    clusters: Integers
    absent: Bools
    labels: NDArray[np.int32]

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Examples:
        """Everything that the queries find."""
        values, matches, codes, sizes, counts = [], [], [], [], []
        for group in groups:
            for row, score in enumerate(group.outlier_scores):
                places, of_labels = group.observed.signals(row, score)
                values.append(of_labels)
                matches.append(group.observed.matches[row, places])
                codes.append(group.observed.label_codes[row, places])
                sizes.append(group.observed.found_sizes[row, places])
                counts.append(len(places))
        return cls(
            np.concatenate(values),
            np.concatenate(matches),
            np.concatenate(codes),
            np.concatenate(sizes),
            np.cumsum(np.r_[0, counts[:-1]]),
            np.concatenate([np.full(len(g.observed), g.weight) for g in groups]),
            np.concatenate([g.clusters for g in groups]),
            np.concatenate([np.full(len(g.observed), g.absent) for g in groups]),
            np.concatenate([g.observed.codes for g in groups]),
        )

    @property
    def counts(self) -> Integers:
        """Labels (Q,) that each query finds."""
        counts: Integers = np.diff(np.r_[self.starts, len(self.matches)])
        return counts

    @property
    def queries(self) -> Integers:
        """The query that each row belongs to, (N,)."""
        return np.repeat(np.arange(len(self.starts)), self.counts)

    @property
    def chosen(self) -> Bools:
        """A mask (N,) of the labels to be foretold: the first true match of each query.

        Where a query has several, which are hardly told apart, they share the probability of the
        choice: it is too low for each.
        """
        rows = np.flatnonzero(self.matches)
        _, first = np.unique(self.queries[rows], return_index=True)
        chosen = np.zeros(len(self.matches), dtype=bool)
        chosen[rows[first]] = True
        return chosen

    def likeliest(self, probabilities: Floats) -> Integers:
        """Return the row (Q,) of the label of each query's highest of ``probabilities`` (N,)."""
        # By query, then falling; of equal ones the nearest first.
        order = np.lexsort((-probabilities, self.queries))
        rows: Integers = order[self.starts]
        return rows

    @property
    def places(self) -> Integers:
        """Place (N,) of each label among those of its query, from 0."""
        places: Integers = np.arange(len(self.matches)) - self.starts[self.queries]
        return places

    def at(self, queries: Integers) -> Examples:
        """Some of the queries."""
        counts = self.counts[queries]
        starts = np.cumsum(np.r_[0, counts[:-1]])
        rows = np.arange(counts.sum()) + np.repeat(self.starts[queries] - starts, counts)
        return Examples(
            self.values[rows],
            self.matches[rows],
            self.codes[rows],
            self.sizes[rows],
            starts,
            self.weights[queries],
            self.clusters[queries],
            self.absent[queries],
            self.labels[queries],
        )


def limits_of(absence: Absence, examples: Examples) -> Limits | None:
    """Return the limits of a fit, by what its absent queries can say of others."""
    if absence in _STAND_INS_ONLY:
        return BY_SIGN
    is_hidden = absence == "hidden_labels"
    return ALONE if is_hidden and (examples.counts[examples.absent] == 1).all() else None


def cross_fitted(
    examples: Examples, seed: int, limits: Limits | None = None
) -> tuple[Floats, Integers]:
    """Return match probabilities by fits that have not seen their query.

    Those of absent queries come from fits that have seen no query of their label, with or without a
    match: of a label that the gallery does not hold, the served fit has seen none either.

    Parameters
    ----------
    limits : see `fit_choice`.

    Returns
    -------
    probabilities : (N,) of the examples' labels.
    folds : (Q,) which queries were left out together, their labels aside.
    """
    probabilities = np.empty(len(examples.matches))
    folds = np.empty(len(examples.starts), dtype=np.int64)
    first_matches = examples.matches[examples.starts]
    divided = stratified_folds(first_matches, examples.clusters, seed)
    for fold, (kept, left_out) in enumerate(divided):
        folds[left_out] = fold
        _fit_and_apply(examples, kept, left_out, probabilities, limits)
    labels = np.unique(examples.labels[examples.absent])
    if len(labels) > 1:
        of_label = np.random.default_rng(seed).permutation(len(labels)) % N_FOLDS
        for fold in np.unique(of_label):
            of_fold = np.isin(examples.labels, labels[of_label == fold])
            left_out = np.flatnonzero(of_fold & examples.absent)
            _fit_and_apply(examples, np.flatnonzero(~of_fold), left_out, probabilities, limits)
    return probabilities, folds


def _fit_and_apply(
    examples: Examples,
    kept: Integers,
    left_out: Integers,
    probabilities: Floats,
    limits: Limits | None,
) -> None:
    """Fit to the queries ``kept``, and write ``probabilities`` (N,) of those ``left_out``."""
    held_out = examples.at(left_out)
    log_odds = fit_choice(examples.at(kept), limits).log_odds(held_out.values)
    rows = np.isin(examples.queries, left_out)
    probabilities[rows] = _choices(log_odds, held_out.starts, held_out.counts)[0]


def fit_choice(examples: Examples, limits: Limits | None = None) -> LogisticModel:
    """Conditional logit (McFadden 1974): which label is the match, if any is.

    Minimises the weighted mean of −log P(the truth), plus `RIDGE` ‖w‖², where each label has the
    log-odds w · x + b against that none matches: see `choice_probabilities`.

    Parameters
    ----------
    limits : (S,) least and greatest weight of each signal; None where there are none.
    """
    of_row = examples.weights[examples.queries]
    centre = np.average(examples.values, axis=0, weights=of_row)
    scale = np.sqrt(np.average((examples.values - centre) ** 2, axis=0, weights=of_row))
    scale = np.where(scale > _LEAST_SPREAD, scale, 1.0)
    values = (examples.values - centre) / scale
    share = examples.weights / examples.weights.sum()
    of_truth = examples.chosen * of_row / examples.weights.sum()
    starts, counts = examples.starts, examples.counts

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        weights, intercept = parameters[:-1], parameters[-1]
        log_odds = values @ weights + intercept
        chosen, log_total = _choices(log_odds, starts, counts)
        slope = chosen * np.repeat(share, counts) - of_truth
        loss = share @ log_total - of_truth @ log_odds + RIDGE * (weights @ weights)
        return float(loss), np.r_[slope @ values + 2 * RIDGE * weights, slope.sum()]

    of_weights = [(None, None)] * values.shape[1] if limits is None else limits
    bounds = [*of_weights, (-_MOST_LOG_ODDS, _MOST_LOG_ODDS)]
    found = minimize(
        loss_and_gradient, np.zeros(len(bounds)), jac=True, method="L-BFGS-B", bounds=bounds
    ).x
    return LogisticModel(found[:-1], centre, scale, float(found[-1]))


def _choices(log_odds: Floats, starts: Integers, counts: Integers) -> tuple[Floats, Floats]:
    """`choice_probabilities` (N,) of many queries, and their log of 1 + Σ exp(log-odds), (Q,)."""
    most = np.maximum(np.maximum.reduceat(log_odds, starts), 0)
    odds = np.exp(log_odds - np.repeat(most, counts))
    total = np.exp(-most) + np.add.reduceat(odds, starts)
    return odds / np.repeat(total, counts), np.log(total) + most


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
            fitted = isotonic_regression(with_new / new_mass, weights=new_mass)
            bounds[added, row] = fitted.x[knot]
    return VennAbers(distinct[knots], bounds[0], bounds[1])
