"""Correcting match probabilities by what users said of earlier ones."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from index_builder.progress import console
from model_store.decision import Calibration, Recalibration
from model_store.errors import CalibrationError
from model_store.feedback import FeedbackLog, SaidPairs

MIN_PAIRS = 50
"""Below it a slope is guesswork."""

MIN_OF_EACH = 10
"""Confirmed pairs, and rejected ones: from one outcome alone nothing but that is learned."""

N_FOLDS = 5

_PRIOR_STD = np.array([0.5, 1.0])
"""Standard deviations of the prior of log slope and intercept, around no correction at all."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def corrected_by_feedback(calibration: Calibration, log: FeedbackLog) -> Calibration:
    """The calibration with its match probabilities corrected, and a report of it.

    Uncorrected log-odds are fitted to, so that feedback on corrected probabilities corrects
    nothing twice. Where the correction does not foretell better what users say, cross-fitted by
    query, nothing is corrected and the report says so.

    Raises
    ------
    CalibrationError : too little was said of these probabilities.
    """
    said = log.pairs(calibration.match_fingerprint())
    n_confirmed = int(said.correct.sum())
    _require_enough(said, n_confirmed)
    before = _log_loss(Recalibration()(said.log_odds), said.correct)
    after = _log_loss(_cross_fitted(said), said.correct)
    applied = after < before
    fitted = fit_recalibration(said.log_odds, said.correct) if applied else Recalibration()
    if not applied:
        console.print(
            f"Feedback on {len(said.correct)} pairs corrects nothing: cross-fitted, probabilities "
            f"would foretell it no better (log loss {after:.4f}, uncorrected {before:.4f})."
        )
    report = {
        "n": len(said.correct),
        "confirmed": n_confirmed,
        "n_others": said.n_others,
        "applied": bool(applied),
        "log_loss_before": before,
        "log_loss_after": after,
        **asdict(fitted),
    }
    return replace(calibration, feedback=fitted, report={**calibration.report, "feedback": report})


def fit_recalibration(log_odds: Floats, correct: Bools) -> Recalibration:
    """Slope and intercept on log-odds (Platt 1999), penalised towards no correction.

    Minimises the summed log loss plus ½ (log slope / 0.5)² + ½ (intercept / 1)²; a slope by its
    logarithm is positive.
    """
    sign = np.where(correct, 1.0, -1.0)

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        slope, intercept = np.exp(parameters[0]), parameters[1]
        margin = sign * (slope * log_odds + intercept)
        pull = parameters / _PRIOR_STD**2
        by_margin = -sign * expit(-margin)
        gradient = np.array([slope * (by_margin @ log_odds), by_margin.sum()]) + pull
        return float(np.logaddexp(0, -margin).sum() + 0.5 * parameters @ pull), gradient

    log_slope, intercept = minimize(
        loss_and_gradient, np.zeros(2), jac=True, method="L-BFGS-B"
    ).x.tolist()
    return Recalibration(float(np.exp(log_slope)), intercept, len(correct))


def _cross_fitted(said: SaidPairs) -> Floats:
    """Corrected probabilities (n,), by fits that have not seen the query."""
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415 - slow

    probabilities = np.empty(len(said.correct))
    for kept, left_out in GroupKFold(N_FOLDS).split(said.log_odds, groups=said.queries):
        fitted = fit_recalibration(said.log_odds[kept], said.correct[kept])
        probabilities[left_out] = fitted(said.log_odds[left_out])
    return probabilities


def _log_loss(probabilities: Floats, correct: Bools) -> float:
    of_truth = np.where(correct, probabilities, 1 - probabilities)
    return float(-np.log(np.maximum(of_truth, np.finfo(np.float64).tiny)).mean())


def _require_enough(said: SaidPairs, n_confirmed: int) -> None:
    n, n_queries = len(said.correct), len(np.unique(said.queries))
    rejected = n - n_confirmed
    if n < MIN_PAIRS or min(n_confirmed, rejected) < MIN_OF_EACH or n_queries < N_FOLDS:
        raise CalibrationError(
            f"Users spoke of {n} pairs of {n_queries} queries ({n_confirmed} confirmed, {rejected} "
            f"rejected) with these probabilities, and of {said.n_others} with others; wanted at "
            f"least {MIN_PAIRS} pairs of {N_FOLDS} queries, {MIN_OF_EACH} of either outcome. "
            "Collect more, or calibrate without --feedback."
        )
