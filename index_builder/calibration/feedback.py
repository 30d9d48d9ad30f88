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

MIN_DRAWN = 30
"""Pairs drawn at random from which on the others are taken for what they are: volunteered."""

_PRIOR_STD = np.array([0.5, 1.0, 1.0])
"""Standard deviations of the prior, around no correction at all: of log slope, intercept, and what
the intercept of volunteered pairs has more."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def corrected_by_feedback(calibration: Calibration, log: FeedbackLog) -> Calibration:
    """The calibration with its match probabilities corrected, and a report of it.

    Uncorrected log-odds are fitted to, so that feedback on corrected probabilities corrects
    nothing twice. Pairs that were drawn at random for review speak for all that is served; where
    there are enough of them, others are taken as volunteered. Where the correction does not
    foretell better what users say, cross-fitted by query, of the drawn pairs if there are enough,
    nothing is corrected and the report says so.

    Raises
    ------
    CalibrationError : too little was said of these probabilities.
    """
    pairs = log.pairs(calibration.match_fingerprint())
    n_confirmed = int(pairs.correct.sum())
    _require_enough(pairs, n_confirmed)
    judged = (
        pairs.drawn if _speak_for_the_stream(pairs) else np.ones(len(pairs.correct), dtype=bool)
    )
    before = _log_loss(Recalibration()(pairs.log_odds[judged]), pairs.correct[judged])
    after = _log_loss(_cross_fitted(pairs)[judged], pairs.correct[judged])
    applied = after < before
    fitted = _fitted(pairs) if applied else Recalibration()
    if not applied:
        console.print(
            f"Feedback on {len(pairs.correct)} pairs corrects nothing: cross-fitted, probabilities "
            f"would foretell it no better (log loss {after:.4f}, uncorrected {before:.4f})."
        )
    report = {
        "n": len(pairs.correct),
        "confirmed": n_confirmed,
        "n_drawn": int(pairs.drawn.sum()),
        "n_others": pairs.n_others,
        "applied": bool(applied),
        "log_loss_before": before,
        "log_loss_after": after,
        **asdict(fitted),
    }
    return replace(calibration, feedback=fitted, report={**calibration.report, "feedback": report})


def fit_recalibration(
    log_odds: Floats, correct: Bools, volunteered: Bools | None = None
) -> Recalibration:
    """Slope and intercept on log-odds (Platt 1999), penalised towards no correction.

    Minimises the summed log loss plus ½ (log slope / 0.5)² + ½ (intercept / 1)²; a slope by its
    logarithm is positive.

    Parameters
    ----------
    log_odds, correct : (n,) of pairs.
    volunteered : (n,) pairs whose reviewers chose to speak, maybe because they are wrong. How often
        such are spoken of moves their intercept alone (Prentice and Pyke 1979), so that they have
        one more of their own, with the same prior, and the slope is that of all. None: all pairs
        are such as are served.
    """
    sign = np.where(correct, 1.0, -1.0)
    chosen = np.zeros(len(correct)) if volunteered is None else volunteered.astype(np.float64)

    def loss_and_gradient(parameters: Floats) -> tuple[float, Floats]:
        slope = np.exp(parameters[0])
        margin = sign * (slope * log_odds + parameters[1] + parameters[2] * chosen)
        pull = parameters / _PRIOR_STD**2
        by_margin = -sign * expit(-margin)
        gradient = np.array([slope * (by_margin @ log_odds), by_margin.sum(), by_margin @ chosen])
        return float(np.logaddexp(0, -margin).sum() + 0.5 * parameters @ pull), gradient + pull

    log_slope, intercept, _ = minimize(
        loss_and_gradient, np.zeros(3), jac=True, method="L-BFGS-B"
    ).x.tolist()
    return Recalibration(float(np.exp(log_slope)), intercept, len(correct))


def _speak_for_the_stream(pairs: SaidPairs) -> bool:
    """Return whether enough pairs were drawn at random to tell how others were chosen."""
    return int(pairs.drawn.sum()) >= MIN_DRAWN


def _fitted(pairs: SaidPairs) -> Recalibration:
    volunteered = ~pairs.drawn if _speak_for_the_stream(pairs) else None
    return fit_recalibration(pairs.log_odds, pairs.correct, volunteered)


def _cross_fitted(pairs: SaidPairs) -> Floats:
    """Corrected probabilities (n,), by fits that have not seen the query."""
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415 - slow

    probabilities = np.empty(len(pairs.correct))
    volunteered = ~pairs.drawn if _speak_for_the_stream(pairs) else np.zeros_like(pairs.drawn)
    for kept, left_out in GroupKFold(N_FOLDS).split(pairs.log_odds, groups=pairs.queries):
        fitted = fit_recalibration(pairs.log_odds[kept], pairs.correct[kept], volunteered[kept])
        probabilities[left_out] = fitted(pairs.log_odds[left_out])
    return probabilities


def _log_loss(probabilities: Floats, correct: Bools) -> float:
    of_truth = np.where(correct, probabilities, 1 - probabilities)
    return float(-np.log(np.maximum(of_truth, np.finfo(np.float64).tiny)).mean())


def _require_enough(pairs: SaidPairs, n_confirmed: int) -> None:
    n, n_queries = len(pairs.correct), len(np.unique(pairs.queries))
    rejected = n - n_confirmed
    if n < MIN_PAIRS or min(n_confirmed, rejected) < MIN_OF_EACH or n_queries < N_FOLDS:
        raise CalibrationError(
            f"Users spoke of {n} pairs of {n_queries} queries ({n_confirmed} confirmed, {rejected} "
            f"rejected) with these probabilities, and of {pairs.n_others} with others; wanted at "
            f"least {MIN_PAIRS} pairs of {N_FOLDS} queries, {MIN_OF_EACH} of either outcome. "
            "Collect more, or calibrate without --feedback."
        )
