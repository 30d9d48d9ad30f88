"""Fits match probabilities, measures result sets, and corrects probabilities by feedback.

A query has one candidate for each label that it finds: the nearest item of this label.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from index_builder.calibration.queries import QueryGroup
from index_builder.calibration.retrieval import RetrievedQueries
from index_builder.progress import console
from model_store.decision import (
    SIGNALS,
    Calibration,
    Evidence,
    LogisticModel,
    MatchModel,
    Recalibration,
    ResultSetRule,
    choice_probabilities,
    fit_recalibration,
)
from model_store.decision.probabilities import labels_found, prior_shift
from model_store.errors import CalibrationError
from model_store.feedback import FeedbackLog, SaidPairs
from model_store.messages import Absence
from model_store.truth import apart_from_places, decreased

N_FOLDS = 5

RIDGE = 2e-3
"""Factor of the L2 penalty on the weights. The penalty is added to the mean loss. Without a
penalty, a hundred queries cannot determine ten weights."""

N_SIGNALS = (4, 6)
"""Numbers of signals to try. With n signals, a fit uses the first n of `SIGNALS`. More than six
signals would overfit. Before release 0.3 there were twelve signals; six of the twelve had no
measurable effect."""

FEW_LABELS, N_SIGNALS_OF_FEW = 15, (3, 4)
"""If the absent queries have fewer than `FEW_LABELS` labels, fewer signals are tried. On six labels
of CUB, twelve signals overfitted: with four signals, the AUROC of absent queries was higher by
0.02."""

N_OF_PRESENCE = 2
"""Number of signals that tell whether a query has a match, if the absent queries are queries with a
hidden label, of fewer than `FEW_LABELS` labels. More signals, and the sum over similar
labels, overfit to so few labels: the AUROC of P(no match) for absent kinds, minus that of the
similarity, was −0.035, −0.011 and +0.039 in builds of seven kinds of CUB, eight of CIFAR-10 and
eight of Fashion-MNIST. With these two signals it is +0.010, +0.014 and +0.015."""

_STAND_INS_ONLY: tuple[Absence, ...] = ("hidden_trained_labels", "near_misses_of_views")
"""Kinds of absent queries that differ from truly absent queries. If the absent queries are of these
kinds, a fit uses only the first four signals. An encoder separates the images of a training label
from all other images. If a training label is hidden, queries of this label find items of many other
labels. A truly absent query finds items of few labels."""

_MOST_LOG_ODDS = 20.0
"""Maximum magnitude of the intercept, which is unbounded if every query has a match."""

_RATIO = SIGNALS.index("log_distance_ratio")
"""The column of the signal that compares an item with the nearest item of another label."""

_LEAST_SAID = 1e-3
"""Minimum probability in `fit_decrease`, so that few surprising results do not decide the fit."""

_LEAST_SPREAD = 1e-9
"""A signal is scaled only if its standard deviation exceeds this minimum. Rounding gives a constant
signal a standard deviation of about 1e-14. A later query can have another value of this signal. If
the difference between the two values were divided by 1e-14, the result would outweigh all other
signals."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Examples:
    """The labels that queries find; each label is represented by its nearest item.

    Attributes
    ----------
    values : (N, S) signals, grouped by query, nearest label first.
    matches : (N,) whether the label is the query's own label.
    codes : (N,) codes of the labels.
    sizes : (N,) number of the label's items in the gallery.
    starts : (Q,) first row of each query.
    weights, clusters, absent : (Q,), see `QueryGroup`.
    labels : (Q,) code of each query's own label, see `RetrievedQueries.codes`.
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
    def of(cls, groups: Sequence[QueryGroup]) -> Examples:
        """Collect the labels that all queries find."""
        values, matches, codes, sizes, counts = [], [], [], [], []
        for group in groups:
            for row in range(len(group.observed)):
                places, of_labels = group.observed.signals(row)
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
        """Number of labels (Q,) that each query finds."""
        counts: Integers = np.diff(np.r_[self.starts, len(self.matches)])
        return counts

    @property
    def queries(self) -> Integers:
        """For each row, the index of its query, (N,)."""
        return np.repeat(np.arange(len(self.starts)), self.counts)

    @property
    def chosen(self) -> Bools:
        """A mask (N,) of the target labels of the fit: for each query, the first true match.

        If a query finds several true matches, the signals of these matches are nearly equal. The
        model divides the probability among these matches, so the probability of each match is too
        low.
        """
        rows = np.flatnonzero(self.matches)
        _, first = np.unique(self.queries[rows], return_index=True)
        chosen = np.zeros(len(self.matches), dtype=bool)
        chosen[rows[first]] = True
        return chosen

    @property
    def absent_share(self) -> float:
        """Total weight of the absent queries, divided by the total weight of all queries."""
        return float(self.weights[self.absent].sum() / self.weights.sum())

    def of_share(self, share: float) -> Examples:
        """The same queries, with the weights of absent queries scaled to this `absent_share`."""
        of_matched, of_absent = (self.weights[~self.absent].sum(), self.weights[self.absent].sum())
        if not (of_matched and of_absent):
            return self
        scale = share / (1 - share) * of_matched / of_absent
        return replace(self, weights=np.where(self.absent, scale * self.weights, self.weights))

    @property
    def nearest(self) -> Examples:
        """The nearest label of each query; it is the match if any label of the query is."""
        return replace(
            self,
            values=self.values[self.starts],
            matches=np.logical_or.reduceat(self.matches, self.starts),
            codes=self.codes[self.starts],
            sizes=self.sizes[self.starts],
            starts=np.arange(len(self.starts)),
        )

    def likeliest(self, probabilities: Floats) -> Integers:
        """Return the row of each query's most probable label, (Q,).

        ``probabilities`` (N,) are the probabilities of the labels.
        """
        # Sorted by query, then by decreasing probability; equal labels stay nearest first.
        order = np.lexsort((-probabilities, self.queries))
        rows: Integers = order[self.starts]
        return rows

    @property
    def places(self) -> Integers:
        """Position (N,) of each label within its query, from 0."""
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


def numbers_of_signals(absence: Absence, examples: Examples) -> Sequence[int]:
    """Return the numbers of signals to try.

    If the absent queries do not represent truly absent queries, fewer signals are tried.
    """
    if (examples.counts[examples.absent] == 1).all():
        return (2,)  # signals that compare labels are undefined if a query finds one label
    if absence in _STAND_INS_ONLY:
        return N_SIGNALS[:1]
    n_labels = len(np.unique(examples.labels[examples.absent]))
    return N_SIGNALS_OF_FEW if n_labels < FEW_LABELS else N_SIGNALS


@dataclass(frozen=True, slots=True)
class CrossFit:
    """Match probabilities of queries.

    The probabilities of a query come from a fit without queries of the same label.

    Attributes
    ----------
    probabilities : (N,) match probabilities of the examples.
    folds : (Q,) fold of each query.
    n_signals : number of signals in the fits.
    losses : (Q,) −log P(the truth) of each query.
    """

    probabilities: Floats
    folds: Integers
    n_signals: int
    losses: Floats


def presence_is_apart(absence: Absence, examples: Examples) -> bool:
    """Return whether P(match) has a fit apart from the choice of the label: `N_OF_PRESENCE`."""
    n_labels = len(np.unique(examples.labels[examples.absent]))
    return absence == "hidden_labels" and n_labels < FEW_LABELS


def cross_fitted(
    examples: Examples, seed: int, n_signals: Sequence[int] = N_SIGNALS, *, apart: bool = False
) -> CrossFit:
    """Cross-fit over labels with each number of signals; return the best fit.

    A fit with more signals is better if it lowers the mean loss by more than the standard error of
    this decrease. The standard error is computed over labels. A label with more than half of the
    matched queries is split by `Examples.clusters`.

    Parameters
    ----------
    n_signals : numbers of signals to try, in ascending order.
    apart : see `fit_match`.

    Raises
    ------
    CalibrationError : all queries have the same label.
    """
    keys = np.unique(examples.labels, return_inverse=True)[1]
    if int(keys.max()) == 0:
        raise CalibrationError(
            "All calibration queries have the same label, but the fit needs at least two labels. "
            "Add queries of other labels."
        )
    matched = np.flatnonzero(~examples.absent)
    of_label = np.bincount(keys[matched])
    if 2 * of_label.max() > len(matched):
        # Without this label, a fit has other queries than the fit to all. Objects are left out.
        split = matched[keys[matched] == of_label.argmax()]
        keys[split] = keys.max() + 1 + examples.clusters[split]
        keys = np.unique(keys, return_inverse=True)[1]
    n_keys = int(keys.max()) + 1
    folds = (np.random.default_rng(seed).permutation(n_keys) % min(N_FOLDS, n_keys))[keys]
    best, *others = [_cross_fit(examples, folds, n, apart=apart) for n in n_signals]
    for other in others:
        gains = examples.weights * (best.losses - other.losses)
        gain = gains.sum() / examples.weights.sum()
        of_keys = np.bincount(keys, gains - gain * examples.weights)
        if gain > np.sqrt(of_keys @ of_keys) / examples.weights.sum():
            best = other
    return best


def _cross_fit(examples: Examples, folds: Integers, n_signals: int, *, apart: bool) -> CrossFit:
    probabilities = np.empty(len(examples.matches))
    ends = examples.starts + examples.counts
    for fold in range(int(folds.max()) + 1):
        kept = examples.at(np.flatnonzero(folds != fold)).of_share(examples.absent_share)
        model = fit_match(kept, n_signals, apart=apart)
        for query in np.flatnonzero(folds == fold):
            rows = slice(examples.starts[query], ends[query])
            probabilities[rows] = choice_probabilities(model.of_list(examples.values[rows]))
    of_truth = np.add.reduceat(np.where(examples.chosen, probabilities, 0.0), examples.starts)
    nothing = 1 - np.add.reduceat(probabilities, examples.starts)
    has_match = np.add.reduceat(examples.chosen.astype(float), examples.starts) > 0
    of_truth = np.maximum(np.where(has_match, of_truth, nothing), np.finfo(float).tiny)
    return CrossFit(probabilities, folds, n_signals, -np.log(of_truth))


def fit_match(examples: Examples, n_signals: int, *, apart: bool) -> MatchModel:
    """Fit the match model with the first ``n_signals`` of `SIGNALS`.

    Parameters
    ----------
    apart : whether P(match) has a separate fit, to `N_OF_PRESENCE` signals of the nearest label.
    """
    choice = fit_choice(examples, n_signals)
    presence = fit_choice(examples.nearest, N_OF_PRESENCE) if apart else None
    return MatchModel(choice.weights, choice.centre, choice.scale, choice.intercept, presence)


def fit_choice(examples: Examples, n_signals: int = len(SIGNALS)) -> LogisticModel:
    """Fit a conditional logit (McFadden 1974): which label, if any, is the match.

    The fit minimises the weighted mean of −log P(truth) plus `RIDGE` ‖w‖². Each label has log-odds
    w · x + b against "no match", see `choice_probabilities`. The weight of `_RATIO` is at least 0:
    a nearer item does not make its label less likely than other labels. Without this limit, the
    weight could be negative, because the signals are correlated. Calibration queries are never
    copies of items, so the cross-fitted loss hardly changes; but an exact copy of an item could get
    a match probability of 0.05.

    Parameters
    ----------
    n_signals : n; the first n of `SIGNALS` are used. The other signals get weight 0.
    """
    of_row = examples.weights[examples.queries]
    centre = np.average(examples.values, axis=0, weights=of_row)
    scale = np.sqrt(np.average((examples.values - centre) ** 2, axis=0, weights=of_row))
    scale = np.where(scale > _LEAST_SPREAD, scale, 1.0)
    values = ((examples.values - centre) / scale)[:, :n_signals]
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

    least = [0.0 if place == _RATIO else None for place in range(values.shape[1])]
    bounds = [*((one, None) for one in least), (-_MOST_LOG_ODDS, _MOST_LOG_ODDS)]
    found = minimize(
        loss_and_gradient, np.zeros(len(bounds)), jac=True, method="L-BFGS-B", bounds=bounds
    ).x
    weights = np.zeros_like(centre)
    weights[:n_signals] = found[:-1]
    return LogisticModel(weights, centre, scale, float(found[-1]))


N_FITTED = 10
"""`fit_decrease` uses the results 2 to 10 of each query."""

_DECREASES = ((math.log(0.2), math.log(20)),) * 2
"""Smallest and largest logarithms of the two exponents."""


def fit_decrease(groups: Sequence[QueryGroup], fitted: CrossFit, metres: float) -> Floats:
    """Fit the exponents (2,) of `Calibration.decrease` to the further results of all queries.

    With cross-fitted probabilities P of the places l, a result i is a match with probability
    P_i = Σ_l P_l S(x_il), with S of `Calibration.decrease` and x of `apart_from_places`. The fit
    minimises the log loss.

    Parameters
    ----------
    groups : the queries that ``fitted`` was fitted to, in the same order.
    metres : maximum distance of a match.
    """
    weights, of_places, apart, results, are_right, start, n = [], [], [], [], [], 0, 0
    for group in groups:
        observed, positions = group.observed, cast("Floats", group.observed.positions)
        for row in range(len(observed)):
            first, _ = labels_found(observed.label_codes[row])
            probabilities = fitted.probabilities[start : start + len(first)]
            start += len(first)
            found = apart_from_places(positions[row], first, metres)[:, 1:N_FITTED]
            place, result = np.nonzero(found < 1)
            of_places.append(probabilities[place])
            apart.append(found[place, result])
            results.append(n + result)
            are_right.append(observed.matches[row, 1:N_FITTED])
            n += len(are_right[-1])
            weights.append(np.full(len(are_right[-1]), group.weight))
    weight, right = np.concatenate(weights), np.concatenate(are_right)
    shares, of_results = np.concatenate(of_places), np.concatenate(results)
    x: Floats = np.concatenate(apart)

    def loss(logarithms: Floats) -> float:
        said = np.bincount(of_results, shares * decreased(x, np.exp(logarithms)), minlength=n)
        of_truth = np.where(right, said, 1 - said)
        return float(-weight @ np.log(np.maximum(of_truth, _LEAST_SAID)))

    exponents: Floats = np.exp(minimize(loss, np.zeros(2), bounds=_DECREASES).x)
    return exponents


def list_probabilities(
    calibration: Calibration, observed: RetrievedQueries, absent_share: float
) -> Iterator[tuple[Integers, Floats]]:
    """Yield positions (g,) of the labels in each list, and the probabilities (g,) of these labels.

    The probabilities are not corrected by feedback.

    Parameters
    ----------
    absent_share : share of absent queries that the probabilities assume.
    """
    shift = prior_shift(calibration.assumed_absent, absent_share)
    for row in range(len(observed)):
        places, values = observed.signals(row)
        yield places, choice_probabilities(calibration.match.of_list(values) + shift)


def _choices(log_odds: Floats, starts: Integers, counts: Integers) -> tuple[Floats, Floats]:
    """Return `choice_probabilities` (N,) of all queries, and log(1 + Σ exp(log-odds)), (Q,)."""
    most = np.maximum(np.maximum.reduceat(log_odds, starts), 0)
    odds = np.exp(log_odds - np.repeat(most, counts))
    total = np.exp(-most) + np.add.reduceat(odds, starts)
    return odds / np.repeat(total, counts), np.log(total) + most


def set_outcomes(
    examples: Examples,
    fitted: CrossFit,
    coverages: Sequence[float],
    evidence: Evidence,
    calibration: Calibration,
) -> list[dict[str, Any]]:
    """Measure cross-fitted result sets at each coverage, on the queries with a match.

    Parameters
    ----------
    evidence : evidence of all queries.
    calibration : calibration of the gallery.
    """
    n_labels, delta = calibration.n_labels, calibration.delta
    ends = examples.starts + examples.counts
    sizes: list[list[int]] = [[] for _ in coverages]
    hits: list[list[bool]] = [[] for _ in coverages]
    for fold in np.unique(fitted.folds):
        rule = ResultSetRule(evidence.at(fitted.folds != fold), n_labels, delta)
        for query in np.flatnonzero((fitted.folds == fold) & ~evidence.absent):
            rows = np.arange(examples.starts[query], ends[query])
            classes = calibration.classes_of(examples.codes[rows])
            for number, coverage in enumerate(coverages):
                chosen = rule.choose(rows, fitted.probabilities[rows], classes, coverage).places
                sizes[number].append(len(chosen))
                hits[number].append(bool(examples.matches[chosen].any()))
    whole = ResultSetRule(evidence, n_labels, delta)
    return [
        {
            "coverage": coverage,
            "promised": whole.shortfall(coverage) is None,
            "promised_for": list(whole.promised_for(coverage)),
            "covered": float(np.mean(hits[number])),
            "mean_size": float(np.mean(sizes[number])),
        }
        for number, coverage in enumerate(coverages)
    ]


MIN_PAIRS = 50
"""Minimum number of pairs to estimate a slope."""

MIN_OF_EACH = 10
"""Minimum number of confirmed pairs; also the minimum number of rejected pairs."""

MIN_DRAWN = 30
"""Minimum number of requested pairs. A pair is requested if it was drawn at random or comes from
the review queue; all other pairs are volunteered. If there are fewer requested pairs than this
minimum, volunteered pairs count as requested pairs, too."""


def corrected_by_feedback(calibration: Calibration, log: FeedbackLog) -> Calibration:
    """Return the calibration with corrected match probabilities and a report of the correction.

    The fit uses uncorrected log-odds, so feedback on corrected probabilities is not applied twice.
    Pairs that are drawn at random for review are representative of all answers. If a pair was drawn
    with probability p, its weight is 1 / p. The review queue chooses pairs by verdict, not by
    correctness, so pairs from the queue are not weighted (covariate-dependent sampling). If at
    least `MIN_DRAWN` pairs were drawn at random or come from the review queue, all other pairs
    count as volunteered. The correction is cross-fitted by query. The corrected log loss is
    compared with the uncorrected log loss; see `_judged` for the compared pairs. The correction is
    applied only if it predicts users' decisions better. The report contains the corrected and the
    uncorrected log loss.

    Raises
    ------
    CalibrationError : too few decisions on answers with the current probabilities.
    """
    pairs = log.pairs(calibration.match_fingerprint)
    n_confirmed = int(pairs.correct.sum())
    _require_enough(pairs, n_confirmed)
    judged = _judged(pairs)
    truth = pairs.correct[judged], pairs.weights[judged]
    before = _log_loss(Recalibration()(pairs.log_odds[judged]), *truth)
    after = _log_loss(_cross_fitted(pairs)[judged], *truth)
    applied = after < before
    fitted = _fitted(pairs) if applied else Recalibration()
    if not applied:
        console.print(
            f"Feedback on {len(pairs.correct)} pairs changes nothing: corrected probabilities "
            f"predict this feedback no better (log loss {after:.4f}, uncorrected {before:.4f})."
        )
    report = {
        "n": len(pairs.correct),
        "confirmed": n_confirmed,
        "n_drawn": int(pairs.drawn.sum()),
        "n_ordered": int(pairs.ordered.sum()),
        "n_others": pairs.n_others,
        "applied": bool(applied),
        "log_loss_before": before,
        "log_loss_after": after,
        **asdict(fitted),
    }
    return replace(calibration, feedback=fitted, report={**calibration.report, "feedback": report})


def _judged(pairs: SaidPairs) -> Bools:
    """Return a mask of the pairs on which the log loss is measured.

    The log loss is measured on the drawn pairs if there are at least `MIN_DRAWN` drawn pairs. With
    fewer drawn pairs, the log loss is measured on the requested pairs, if there are at least
    `MIN_DRAWN` requested pairs. With fewer requested pairs, the log loss is measured on all pairs.
    """
    for judged in (pairs.drawn, pairs.drawn | pairs.ordered):
        if int(judged.sum()) >= MIN_DRAWN:
            return judged
    return np.ones(len(pairs.correct), dtype=np.bool_)


def _volunteered(pairs: SaidPairs) -> Bools:
    """Return a mask of the volunteered pairs.

    All False if there are fewer than `MIN_DRAWN` requested pairs.
    """
    asked = pairs.drawn | pairs.ordered
    return ~asked if int(asked.sum()) >= MIN_DRAWN else np.zeros_like(asked)


def _fitted(pairs: SaidPairs) -> Recalibration:
    return fit_recalibration(pairs.log_odds, pairs.correct, _volunteered(pairs), pairs.weights)


def _cross_fitted(pairs: SaidPairs) -> Floats:
    """Return the corrected probability of each pair, (n,), from a fit without the pair's query."""
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415 - slow

    probabilities = np.empty(len(pairs.correct))
    volunteered = _volunteered(pairs)
    for kept, left_out in GroupKFold(N_FOLDS).split(pairs.log_odds, groups=pairs.queries):
        fitted = fit_recalibration(
            pairs.log_odds[kept], pairs.correct[kept], volunteered[kept], pairs.weights[kept]
        )
        probabilities[left_out] = fitted(pairs.log_odds[left_out])
    return probabilities


def _log_loss(probabilities: Floats, correct: Bools, weights: Floats) -> float:
    of_truth = np.where(correct, probabilities, 1 - probabilities)
    losses = -np.log(np.maximum(of_truth, np.finfo(np.float64).tiny))
    return float(np.average(losses, weights=weights))


def _require_enough(pairs: SaidPairs, n_confirmed: int) -> None:
    n, n_queries = len(pairs.correct), len(np.unique(pairs.queries))
    rejected = n - n_confirmed
    if n < MIN_PAIRS or min(n_confirmed, rejected) < MIN_OF_EACH or n_queries < N_FOLDS:
        raise CalibrationError(
            f"Users decided on {n} pairs of {n_queries} queries ({n_confirmed} confirmed, "
            f"{rejected} rejected) with these probabilities, and on {pairs.n_others} pairs with "
            f"other probabilities; at least {MIN_PAIRS} pairs of {N_FOLDS} queries are needed, "
            f"{MIN_OF_EACH} confirmed and {MIN_OF_EACH} rejected. Collect more, or calibrate "
            "without --feedback."
        )
