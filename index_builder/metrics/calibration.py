"""Calibration metrics: compare predicted probabilities with observed frequencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.records import ReliabilityBin

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def reliability(
    probabilities: Floats, outcomes: Bools, n_bins: int = 15, weights: Floats | None = None
) -> list[ReliabilityBin]:
    """Return a reliability diagram with equal numbers of predictions in the bins.

    The bins have equal numbers of predictions, not equal widths (Nixon et al. 2019). Predictions
    with a probability of exactly 1 are included. If several predictions have equal probability, the
    outcome of each is replaced by the mean outcome of these predictions, see `evened`. The result
    therefore does not depend on the order of the predictions.

    Parameters
    ----------
    probabilities : (N,) in [0, 1].
    outcomes : (N,) whether the predicted event occurred.
    weights : (N,) weights of the predictions; None for equal weights. With weights, the bins have
        equal total weight instead of equal numbers of predictions.
    """
    _require_finite(probabilities)
    shares = evened(probabilities, outcomes, weights)
    if weights is None:
        groups = np.array_split(np.argsort(probabilities), min(n_bins, len(probabilities)))
        return _bins(probabilities, shares, groups)
    order = np.lexsort((weights, probabilities))
    reached = np.cumsum(weights[order]) / weights.sum()
    ends = reached.searchsorted(np.arange(1, n_bins) / n_bins + 1e-9)  # rounding ends no bin
    groups = [group for group in np.split(order, ends) if len(group)]
    return _bins(probabilities, shares, groups, weights)


def evened(values: Floats, outcomes: Bools, weights: Floats | None = None) -> Floats:
    """Return (N,): for each entry, the mean outcome of all entries that have the same value.

    Parameters
    ----------
    values, outcomes : (N,).
    weights : (N,) above 0; None for equal weights.
    """
    weights = np.ones(len(values)) if weights is None else weights
    _, group = np.unique(values, return_inverse=True)
    means: Floats = np.bincount(group, weights * outcomes) / np.bincount(group, weights)
    return means[group]


def calibration_spread(
    probabilities: Floats,
    outcomes: Bools,
    labels: NDArray[np.integer[Any]],
    weights: Floats,
    n_bins: int = 15,
    n_draws: int = 200,
    seed: int = 0,
) -> float:
    """Return the calibration error that perfectly calibrated probabilities would have by chance.

    The errors of two predictions are correlated if the queries have the same label. The bootstrap
    therefore draws labels (cluster bootstrap). The gap of a bin is the mean of outcome minus
    probability. For each draw and each bin, the function compares the gap in the drawn data with
    the gap in all data. The result is the mean of these absolute differences over all bins and
    draws.

    Parameters
    ----------
    probabilities, outcomes, labels, weights : (N,) see `reliability`.
    """
    _, place = np.unique(probabilities, return_inverse=True)  # equal ones share a bin
    of_value = np.bincount(place, weights) / weights.sum()
    middle = np.cumsum(of_value) - of_value / 2
    bins = np.minimum(middle * n_bins, n_bins - 1).astype(np.int64)[place]
    _, codes = np.unique(labels, return_inverse=True)
    shape = int(codes.max()) + 1, n_bins
    mass, gap = np.zeros(shape), np.zeros(shape)
    np.add.at(mass, (codes, bins), weights)
    np.add.at(gap, (codes, bins), weights * (outcomes - probabilities))
    of_all = gap.sum(axis=0) / np.maximum(mass.sum(axis=0), np.finfo(float).tiny)
    n_labels = shape[0]
    equal = np.full(n_labels, 1 / n_labels)
    drawn = np.random.default_rng(seed).multinomial(n_labels, equal, n_draws)
    of_drawn = drawn @ mass
    away = np.abs(drawn @ gap - of_drawn * of_all).sum(axis=1)
    return float((away / of_drawn.sum(axis=1)).mean())


def reliability_by_width(
    probabilities: Floats, outcomes: Bools, n_bins: int = 10
) -> list[ReliabilityBin]:
    """Return a reliability diagram over bins [0, 1/n), …, [(n − 1)/n, 1], without empty bins.

    The last bin includes probabilities of exactly 1; the code of the Laplace metric-learning paper
    drops them.
    """
    _require_finite(probabilities)
    place = np.minimum((probabilities * n_bins).astype(int), n_bins - 1)
    groups = [np.flatnonzero(place == one) for one in np.unique(place)]
    return _bins(probabilities, outcomes, groups)


def expected_calibration_error(probabilities: Floats, outcomes: Bools, n_bins: int = 15) -> float:
    """Σ_b |B_b|/N · |mean outcome − mean probability| over the bins of `reliability`.

    Guo et al. 2017.
    """
    return calibration_error(reliability(probabilities, outcomes, n_bins))


def calibration_error(bins: Sequence[ReliabilityBin]) -> float:
    """Return Σ_b w_b · |share − probability| over the bins of a reliability diagram."""
    return math.fsum(one.weight * abs(one.share - one.probability) for one in bins)


def retrieval_calibration_error(confidences: Floats, correct: Bools, n_bins: int = 10) -> float:
    """Return the calibration error of a consensus: Σ_b |B_b|/N · |accuracy − confidence|.

    This is Eq. 111 of the Laplace metric-learning paper (Warburg et al. 2023). The paper misprints
    the weight |B_b|/N as 1/|B_b|. Bins have equal width.

    Parameters
    ----------
    confidences : (N,) from `consensus`.
    correct : (N,) whether each mode is correct.
    """
    return calibration_error(reliability_by_width(confidences, correct, n_bins))


def consensus(votes: NDArray[np.integer[Any]]) -> tuple[NDArray[np.int64], Floats]:
    """Return each query's most frequent vote, and the vote's share (Warburg et al. 2023, G.3).

    Parameters
    ----------
    votes : (S, B) label codes ≥ 0; each of S samples of a query votes for the label of the sample's
        nearest neighbour.

    Returns
    -------
    modes : (B,) the most frequent code; if several codes are equally frequent, the smallest of
        them.
    confidences : (B,) share of the votes for this code, in (0, 1].
    """
    n_codes = int(votes.max(initial=0)) + 1
    modes = np.empty(votes.shape[1], dtype=np.int64)
    counts = np.empty(votes.shape[1])
    for query, of_query in enumerate(votes.T):
        per_code = np.bincount(of_query, minlength=n_codes)
        modes[query] = per_code.argmax()
        counts[query] = per_code[modes[query]]
    return modes, counts / len(votes)


def brier(probabilities: Floats, outcomes: Bools) -> float:
    """Mean squared difference of probability and outcome, in [0, 1] (Brier 1950).

    Parameters
    ----------
    probabilities, outcomes : (N,).
    """
    return float(np.mean((probabilities - outcomes) ** 2))


def _require_finite(probabilities: Floats) -> None:
    if not len(probabilities) or not np.isfinite(probabilities).all():
        raise ValueError("probabilities must be one or more finite numbers")


def _bins(
    probabilities: Floats,
    outcomes: Bools | Floats,
    groups: Sequence[NDArray[np.int64]],
    weights: Floats | None = None,
) -> list[ReliabilityBin]:
    weights = np.ones(len(probabilities)) if weights is None else weights
    total = sum(float(weights[rows].sum()) for rows in groups)
    return [
        ReliabilityBin(
            n=len(rows),
            probability=float(np.average(probabilities[rows], weights=weights[rows])),
            share=float(np.average(outcomes[rows], weights=weights[rows])),
            weight=float(weights[rows].sum()) / total,
        )
        for rows in groups
    ]
