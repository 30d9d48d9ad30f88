r"""The queries whose decisions would teach most about the probabilities that are served.

A decision on a query with uncorrected log-odds ℓ is an observation of P = expit(a ℓ + b), of which
the correction has to learn θ = (log a, b). With x = (a ℓ, 1) and w = P (1 − P) it brings the Fisher
information w x xᵀ. What is to become small is the mean squared error of the probabilities of all
that is served,

    V = mean_j w_j² x_jᵀ I⁻¹ x_j = tr(I⁻¹ M),   I = Λ + Σ_decided w x xᵀ,   M = mean_j w_j² x_j x_jᵀ

with Λ the precision of the prior on θ: the I-optimal design of experiments (Atkinson, Donev and
Tobias 2007), for a logistic curve as in Schein and Ungar (2007), and variance reduction in the
sense of Cohn, Ghahramani and Jordan (1996). By the formula of Sherman and Morrison one more
decision lowers V by

    w xᵀ I⁻¹ M I⁻¹ x / (1 + w xᵀ I⁻¹ x).

It depends on the log-odds alone, never on whether the answer is right: whatever is learned from
such decisions is unbiased as long as the curve is of this form, and those that are drawn at random
tell whether it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from model_store.decision import Recalibration
from model_store.decision.recalibration import PRIOR_STD

Floats = NDArray[np.float64]


def most_teaching(
    log_odds: Floats, decided: Floats, stream: Floats, served: Recalibration, n: int
) -> list[int]:
    """Return the places of the ``n`` queries to decide on next, the first one first.

    Each is chosen as if those before it had been decided on.

    Parameters
    ----------
    log_odds : (m,) of the queries that may be chosen; NaN where there are none: these come last.
    decided : of the pairs that were decided on already.
    stream : of what is served: of queries drawn at random, where there are such.
    served : the correction as far as it is known.
    """
    slopes, weights = _linearised(log_odds, served)
    moment, information = _moment(stream, served), _information(decided, served)
    left = np.ones(len(log_odds), dtype=np.bool_)
    chosen: list[int] = []
    for _ in range(min(n, len(log_odds))):
        gain = _gain(slopes, weights, moment, information)
        place = int(np.where(left, gain, -1.0).argmax())
        chosen.append(place)
        left[place] = False
        information = information + weights[place] * np.outer(slopes[place], slopes[place])
    return chosen


def teaching_order(
    log_odds: Floats, decided: Floats, stream: Floats, served: Recalibration
) -> list[int]:
    """Return the places of all queries, by what a decision on each alone would teach."""
    slopes, weights = _linearised(log_odds, served)
    gain = _gain(slopes, weights, _moment(stream, served), _information(decided, served))
    places: list[int] = np.argsort(-gain, kind="stable").tolist()
    return places


def _gain(slopes: Floats, weights: Floats, moment: Floats, information: Floats) -> Floats:
    inverse = np.linalg.inv(information)
    through = slopes @ inverse
    lowered = weights * np.einsum("ni,ij,nj->n", through, moment, through)
    gain: Floats = lowered / (1 + weights * np.einsum("ni,ni->n", through, slopes))
    return gain


def _moment(stream: Floats, served: Recalibration) -> Floats:
    slopes, weights = _linearised(stream, served)
    return (slopes.T * weights**2) @ slopes / max(len(stream), 1)


def _information(decided: Floats, served: Recalibration) -> Floats:
    slopes, weights = _linearised(decided, served)
    known: Floats = np.diag(PRIOR_STD[:2] ** -2.0) + (slopes.T * weights) @ slopes
    return known


def _linearised(log_odds: Floats, served: Recalibration) -> tuple[Floats, Floats]:
    """Return x (n, 2) and w (n,) of queries; zeros where the log-odds are not known."""
    known = np.isfinite(log_odds)
    finite = np.where(known, log_odds, 0.0)
    slopes = np.stack([served.slope * finite, np.ones(len(finite))], axis=1) * known[:, None]
    probabilities = served(finite)
    return slopes, probabilities * (1 - probabilities) * known
