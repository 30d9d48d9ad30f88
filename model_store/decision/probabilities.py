"""Match probabilities: the signals of each label in a result list, and the logit that they enter.

The probabilities are adjusted to the share of absent queries, and corrected by feedback.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SIGNALS = (
    "log_distance",
    "outlier_score",
    "log_distance_ratio",
    "mean_margin",
    "mean_agreement",
    "log_distance_50",
)
"""Names of the signals, in the order of the last axis of `signals`. A fit to k signals uses the
first k signals."""

_FLOOR = 1e-4
"""Constant added to cosine distances, because the logarithm would be extreme for an exact copy."""

_OF_MEANS = 0.2
"""The bandwidth h of `mean_agreement` is this fraction of the range of c, see `signals`."""

_SHARE_FLOOR = 1e-3
"""This part of the total weight is added to both sides of the odds, so that the odds are never
0."""

_TINY = 1e-12
"""Constant that keeps the range of similarities above zero if all means are equally similar."""


def labels_found(
    label_codes: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the labels of a result list, in the order of their nearest items.

    Parameters
    ----------
    label_codes : (n,) codes of labels or places; −1 for an item without a label or position, which
        counts as a separate label.

    Returns
    -------
    places : (g,) ascending index of the nearest item of each label.
    belong : (g, n) whether each item has each label.
    """
    codes = list(dict.fromkeys(label_codes.tolist()))
    if -1 in codes:
        own = max(codes) + 1 + np.arange(len(label_codes))
        label_codes = np.where(label_codes == -1, own, label_codes)
        codes = list(dict.fromkeys(label_codes.tolist()))
    belong = np.array(codes)[:, None] == label_codes
    return belong.argmax(axis=1), belong


def signals(
    similarities: Floats,
    places: NDArray[np.int64],
    mean_similarities: Floats,
    outlier_score: float,
    n_listed: int | None = None,
) -> Floats:
    """Return the signals of each label that occurs in one query's result list.

    The signals of a label are computed from the label's nearest item.

    All signals except the margin are logarithms or log-odds, so that a logistic regression adds up
    evidence.

    Parameters
    ----------
    similarities : (n,) similarities, at most 1; descending within the list.
    places : (g,), see `labels_found`.
    mean_similarities : (g,), see `LabelMeans.similarities`.
    outlier_score : outlier score of the query.
    n_listed : number of leading items that form the list; None for all. If all items of a label are
        after the list, the label's signals compare these items with the list. The items after the
        list do not change the signals of the labels in the list.

    Returns
    -------
    (g, len(SIGNALS)), with the cosine distance d = 1 − similarity:

    - ``log_distance``: log d between the item and the query;
    - ``outlier_score``: outlier score of the query;
    - ``log_distance_ratio``: log (d' / d), with d' the cosine distance of the nearest item of
      another label. If the list has only one label, d' is the distance of the last item in the
      list. The signal is negative if d' is smaller than d;
    - ``mean_margin``: similarity of the label's mean minus the highest similarity of another
      label's mean in the list. If the list has only one label, the similarity of the last item is
      subtracted;
    - ``mean_agreement``: log-odds of the label's share of the total weight of the labels in the
      list. The weight is exp((c − c₁) / h), with c the similarity of the label's mean, c₁ the
      largest c, and h 0.2 times the range of c;
    - ``log_distance_50``: log d of the 50th neighbour, which measures the local density of the
      gallery.
    """
    n_listed = len(similarities) if n_listed is None else n_listed
    last = float(similarities[n_listed - 1])
    n_labels = len(places)
    n_in_list = n_labels if n_listed == len(similarities) else int(places.searchsorted(n_listed))
    values = np.empty((n_labels, len(SIGNALS)))
    own = np.log(1 + _FLOOR - similarities[places], out=values[:, 0])
    values[:, 1] = outlier_score
    np.subtract(own[0], own, out=values[:, 2])
    values[0, 2] = (own[1] if n_in_list > 1 else math.log(1 + _FLOOR - last)) - own[0]
    listed = mean_similarities[:n_in_list].tolist()
    *_, second, highest = [last, *listed] if n_in_list == 1 else sorted(listed)
    margins = np.subtract(mean_similarities, highest, out=values[:, 3])
    votes = np.exp(np.minimum(margins, 0) / (_OF_MEANS * (highest - min(listed) + _TINY)))
    margins[listed.index(highest)] = highest - second
    total = float(np.add.reduce(votes[:n_in_list]))
    added = _SHARE_FLOOR * total
    np.log((votes + added) / (total - votes + added), out=values[:, 4])
    values[:, 5] = math.log(1 + _FLOOR - similarities[min(50, n_listed) - 1])
    return values


_BOUND = 1e-12
"""Minimum distance of a probability from 0 and 1."""


@dataclass(frozen=True)
class LogisticModel:
    """P(y = 1 | x) = expit(w · (x − centre) / scale + intercept).

    Attributes
    ----------
    weights, centre, scale : (M,) each; ``scale`` > 0.
    intercept : scalar offset of the log-odds.
    """

    weights: Floats
    centre: Floats
    scale: Floats
    intercept: float

    def __post_init__(self) -> None:
        if not self.weights.shape == self.centre.shape == self.scale.shape:
            raise ValueError(
                f"{self.weights.shape=}, {self.centre.shape=}, {self.scale.shape=} differ"
            )
        if not np.all(self.scale > 0):
            raise ValueError("scale must be positive")

    def log_odds(self, values: Floats) -> Floats:
        """Return log-odds (...) for ``values`` (..., M)."""
        slopes, offset = self._line
        log_odds: Floats = np.vecdot(values, slopes) + offset
        return log_odds

    def __call__(self, values: Floats) -> Floats:
        """Return probabilities (...) for ``values`` (..., M)."""
        probabilities: Floats = expit(self.log_odds(values))
        return probabilities

    @cached_property
    def _line(self) -> tuple[Floats, float]:
        """Slopes (M,) and offset of the log-odds as a function of unscaled ``values``."""
        slopes = self.weights / self.scale
        return slopes, float(self.intercept - self.centre @ slopes)


@dataclass(frozen=True)
class MatchModel(LogisticModel):
    """Computes the log-odds of "this label is the true match" against "no match".

    Attributes
    ----------
    presence : computes the log-odds a that a label of the result list is the true match, from the
        signals of the nearest label. None if the log-odds u of the labels answer this, too.
    """

    presence: LogisticModel | None = None

    def of_list(self, values: Floats, n_listed: int | None = None) -> Floats:
        """Return the log-odds ℓ (g,) of the labels of a query, see `choice_probabilities`.

        With `presence`, ℓ_i = a + u_i − log Σ_j exp(u_j), with the sum over the labels of the list.
        A listed label is then the true match with probability expit(a), and this label is label i
        with probability exp(u_i) / Σ_j exp(u_j). Without it, ℓ = u.

        Parameters
        ----------
        values : (g, S) signals of the labels, nearest label first.
        n_listed : number of leading labels that occur in the result list; None for all.
        """
        log_odds = self.log_odds(values)
        if self.presence is None:
            return log_odds
        listed = log_odds[:n_listed]
        most = float(listed.max())
        total = most + math.log(float(np.add.reduce(np.exp(listed - most))))
        return log_odds + (float(self.presence.log_odds(values[0])) - total)


def choice_probabilities(log_odds: Floats) -> Floats:
    """Return probabilities (g,) of mutually exclusive outcomes (McFadden 1974).

    Parameters
    ----------
    log_odds : (g,) log-odds ℓ of each outcome against no outcome: p_i = exp(ℓ_i) / (1 + Σ_j
        exp(ℓ_j)).
    """
    most = max(0.0, *log_odds.tolist())
    odds = np.exp(log_odds - most)
    probabilities: Floats = odds / (math.exp(-most) + float(np.add.reduce(odds)))
    return probabilities


def bounded_logit(probabilities: Floats) -> Floats:
    """Return the log-odds of probabilities. The result is finite even for 0 and 1."""
    log_odds: Floats = logit(np.minimum(np.maximum(probabilities, _BOUND), 1 - _BOUND))
    return log_odds


def prior_shift(assumed: float, expected: float) -> float:
    """Return the value to add to all log-odds if the share of absent queries changes.

    By Bayes' rule, P(label | query) ∝ P(query | label) P(label). So only the prior odds of a match
    change, and the shift is log((1 − π')/π') − log((1 − π)/π). This shift is exact for a
    conditional logit.

    Parameters
    ----------
    assumed : share π of absent queries, in (0, 1).
    expected : share π' of absent queries, in (0, 1).
    """
    return math.log1p(-expected) - math.log(expected) - math.log1p(-assumed) + math.log(assumed)


def shifted(probabilities: Floats, no_match: Floats, shift: float) -> Floats:
    """Return match ``probabilities`` (...) after `prior_shift`: p e^c / (p₀ + e^c (1 − p₀)).

    Parameters
    ----------
    no_match : (...) p₀ = 1 − Σ of all match probabilities of the query.
    """
    if shift == 0:
        return probabilities
    # Both terms are divided by the larger term, so that they do not overflow.
    scale = math.exp(-min(abs(shift), 700.0))
    grown, kept = (1.0, scale) if shift > 0 else (scale, 1.0)
    moved: Floats = probabilities * grown / (no_match * kept + grown * (1 - no_match))
    return moved


_PRIOR_STD = np.array([0.5, 1.0, 1.0])
"""Standard deviations of the prior for the log slope, the intercept, and the additional intercept
of pairs with unsolicited feedback. All three prior means are 0, which means no correction."""


@dataclass(frozen=True, slots=True)
class Recalibration:
    """P = expit(slope · ℓ + intercept) of uncorrected log-odds ℓ (Platt 1999).

    Attributes
    ----------
    slope : positive, so that the order of items does not change; 1 without correction.
    intercept : 0 without correction.
    n_pairs : number of (query, item) pairs of the fit.
    """

    slope: float = 1.0
    intercept: float = 0.0
    n_pairs: int = 0

    def __post_init__(self) -> None:
        if not (self.slope > 0 and np.isfinite(self.slope) and np.isfinite(self.intercept)):
            raise ValueError(
                f"{self.slope=} and {self.intercept=}; wanted a positive slope and finite values"
            )

    @property
    def is_identity(self) -> bool:
        """True if nothing is corrected."""
        return self.slope == 1 and self.intercept == 0

    def __call__(self, log_odds: Floats) -> Floats:
        """Return corrected probabilities (...) for uncorrected ``log_odds`` (...)."""
        probabilities: Floats = expit(self.slope * log_odds + self.intercept)
        return probabilities

    def of(self, probabilities: Floats) -> Floats:
        """Return corrected ``probabilities`` (...); values of 0 and 1 do not change."""
        if self.is_identity:  # not enough feedback yet
            return probabilities
        certain = (probabilities <= 0) | (probabilities >= 1)
        return np.where(certain, probabilities, self(bounded_logit(probabilities)))


def fit_recalibration(
    log_odds: Floats,
    correct: Bools,
    volunteered: Bools | None = None,
    weights: Floats | None = None,
) -> Recalibration:
    """Fit slope and intercept on log-odds (Platt 1999), with a penalty for large corrections.

    The fit minimises the summed log loss plus ½ (log slope / 0.5)² + ½ (intercept / 1)². Fitting
    the logarithm of the slope keeps the slope positive.

    Parameters
    ----------
    log_odds : (n,) log-odds of the pairs.
    correct : (n,) whether each pair is a match.
    volunteered : (n,) mask of pairs with unsolicited feedback. Users may report errors more often
        than correct matches. This bias affects only the intercept of these pairs (Prentice and Pyke
        1979). So all pairs have one slope, and the pairs in the mask have an additional intercept.
        Both intercepts have the same prior. None if all pairs were drawn from served queries.
    weights : (n,) weight of each pair's loss: proportional to 1 / the probability that the pair was
        drawn. The mean weight is 1. None for equal weights.
    """
    from scipy.optimize import minimize  # noqa: PLC0415 - slow

    sign = np.where(correct, 1.0, -1.0)
    counts = np.ones(len(correct)) if weights is None else weights
    chosen = np.zeros(len(correct)) if volunteered is None else volunteered.astype(np.float64)

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        slope = np.exp(parameters[0])
        margin = sign * (slope * log_odds + parameters[1] + parameters[2] * chosen)
        pull = parameters / _PRIOR_STD**2
        by_margin = -sign * expit(-margin) * counts
        gradient = np.array([slope * (by_margin @ log_odds), by_margin.sum(), by_margin @ chosen])
        loss = counts @ np.logaddexp(0, -margin) + 0.5 * parameters @ pull
        return float(loss), gradient + pull

    log_slope, intercept, _ = minimize(
        loss_and_gradient, np.zeros(3), jac=True, method="L-BFGS-B"
    ).x.tolist()
    return Recalibration(float(np.exp(log_slope)), intercept, len(correct))
