"""The evidence that two images show the same identity.

A pair of images has three signals. The first signal is the cosine s of the two directions. The
second signal is the cosine after symmetric normalisation by a cohort (adaptive S-norm, Matějka et
al. 2017):

    ½ [(s − μ_i) / σ_i + (s − μ_j) / σ_j],

The cohort is a set of images of other identities. μ_i and σ_i are the mean and the standard
deviation of the cosines between image i and the nearest tenth of the cohort. The third signal is
log(u_i u_j), with the total variances u. The second signal corrects for images that are close to
many other images. The third signal corrects for uncertain images: such images are far even from
images of the same identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from model_store.decision.probabilities import LogisticModel
from model_store.sphere import unit_direction
from model_store.table import Table

NEAREST = 0.1
"""Each image is compared only with its nearest images in the cohort. This value is
the share of the cohort that these images form. It is a share and not a number, because the cohort
is smaller in the fit than in use."""

_LEAST_NEAREST = 5

_LEAST_VARIANCE = 1e-12
"""Minimum total variance, also for encoders without a variance."""

_LEAST_SPREAD = 1e-6

_FITTED = 0.95
"""Quantile of the third signal in the fit. Larger values count as this quantile, because the fit
has too few of them."""

_RIDGE = 1e-4
"""Factor of a penalty. The penalty is the sum of squared weights, and is added to the mean loss."""

_AT_ONCE = 4096

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]
Codes = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Points(Table):
    """The embeddings of N images.

    Attributes
    ----------
    directions : (N, D) float32, unit vectors.
    total_variances : (N,) Σ_d v_d / ‖m‖², ≥ 0.
    """

    directions: NDArray[np.float32]
    total_variances: NDArray[np.floating[Any]]

    @classmethod
    def of(cls, mean: NDArray[np.float32], variance: NDArray[np.float32]) -> Points:
        """Return images with the encoder's ``mean`` and ``variance`` (N, D)."""
        return cls(unit_direction(mean), variance.sum(axis=1) / (mean**2).sum(axis=1))


@dataclass(frozen=True, slots=True)
class Labelled(Table):
    """N images whose identity is known.

    Attributes
    ----------
    points : the images.
    codes : (N,) code of each image's identity.
    """

    points: Points
    codes: Codes

    def of(self, codes: Codes) -> Labelled:
        """Return the images of the given identities."""
        return self.at(np.isin(self.codes, codes))


@dataclass(frozen=True, slots=True)
class Compared(Table):
    """N images, compared with a cohort of images of other identities.

    Attributes
    ----------
    points : the images.
    levels : (N,) μ: mean of the cosines between each image and the nearest part of the cohort.
    spreads : (N,) σ: standard deviation of these cosines.
    """

    points: Points
    levels: Floats
    spreads: Floats

    @classmethod
    def with_cohort(cls, points: Points, cohort: NDArray[np.float32]) -> Compared:
        """Compare images with a cohort (M, D) of unit directions."""
        n = min(max(_LEAST_NEAREST, int(NEAREST * len(cohort))), len(cohort))
        levels, spreads = np.empty(len(points)), np.empty(len(points))
        for start in range(0, len(points), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            cosines = points.directions[rows] @ cohort.T
            nearest = np.partition(cosines, len(cohort) - n, axis=1)[:, len(cohort) - n :]
            levels[rows], spreads[rows] = nearest.mean(axis=1), nearest.std(axis=1)
        return cls(points, levels, np.maximum(spreads, _LEAST_SPREAD))

    def signals(self, first: Integers, second: Integers) -> Floats:
        """Return the signals (P, 3) of P pairs, given the indexes of their images."""
        log_variance = np.log(np.maximum(self.points.total_variances, _LEAST_VARIANCE))
        found = np.empty((len(first), 3))
        for start in range(0, len(first), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            i, j = first[rows], second[rows]
            cosines = np.vecdot(self.points.directions[i], self.points.directions[j])
            above = (cosines - self.levels[i]) / self.spreads[i]
            other = (cosines - self.levels[j]) / self.spreads[j]
            found[rows] = np.stack(
                [cosines, (above + other) / 2, log_variance[i] + log_variance[j]], axis=1
            )
        return found


@dataclass(frozen=True, slots=True)
class PairModel:
    """Model of the log-likelihood ratio of a pair: same identity against different identities.

    Attributes
    ----------
    model : log-odds as a function of the signals.
    prior_log_odds : prior log-odds of a pair in the fit.
    most_log_variance : maximum of the third signal, a quantile of its values in the fit.
    """

    model: LogisticModel
    prior_log_odds: float
    most_log_variance: float

    def __call__(self, signals: Floats) -> Floats:
        """Return the log-likelihood ratios (P,) of pairs with ``signals`` (P, 3).

        The third signal has a maximum. Otherwise, a variance above those of the fit would count as
        evidence that two unlike images are the same.
        """
        log_variance = np.minimum(signals[:, 2], self.most_log_variance)
        limited = np.column_stack([signals[:, :2], log_variance])
        return self.model.log_odds(limited) - self.prior_log_odds

    @classmethod
    def fit(cls, signals: Floats, same: Bools, weights: Floats) -> PairModel:
        """Fit to pairs; ``same`` (P,) states whether each pair shows the same identity."""
        share = float(weights @ same / weights.sum())
        most = float(np.quantile(signals[:, 2], _FITTED))
        return cls(fit_logistic(signals, same, weights), float(logit(share)), most)


def fit_logistic(values: Floats, outcomes: Bools, weights: Floats) -> LogisticModel:
    """Fit a logistic regression to ``values`` (N, M) with ``weights`` (N,)."""
    from scipy.optimize import minimize  # noqa: PLC0415 - slow; served queries need none of it

    centre = np.average(values, axis=0, weights=weights)
    spread = np.sqrt(np.average((values - centre) ** 2, axis=0, weights=weights))
    scale = np.where(spread > _LEAST_SPREAD, spread, 1.0)
    scaled = np.hstack([(values - centre) / scale, np.ones((len(values), 1))])
    shares = weights / weights.sum()
    signs = np.where(outcomes, 1.0, -1.0)

    def loss(parameters: Floats) -> tuple[float, Floats]:
        margins = signs * (scaled @ parameters)
        slopes = -shares * signs * expit(-margins)
        gradient = slopes @ scaled
        gradient[:-1] += 2 * _RIDGE * parameters[:-1]
        penalty = _RIDGE * float(parameters[:-1] @ parameters[:-1])
        return float(shares @ np.logaddexp(0, -margins)) + penalty, gradient

    begin = np.zeros(scaled.shape[1])
    begin[-1] = logit(np.clip(shares @ outcomes, 1e-6, 1 - 1e-6))
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options={"ftol": 1e-12}).x
    return LogisticModel(found[:-1], centre, scale, float(found[-1]))
