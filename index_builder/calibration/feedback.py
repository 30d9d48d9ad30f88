"""Corrects match probabilities by users' decisions on earlier answers."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from index_builder.progress import console
from model_store.decision import Calibration, Recalibration, fit_recalibration
from model_store.errors import CalibrationError
from model_store.feedback import FeedbackLog, SaidPairs

MIN_PAIRS = 50
"""Minimum number of pairs to estimate a slope."""

MIN_OF_EACH = 10
"""Minimum number of confirmed pairs; also the minimum number of rejected pairs."""

N_FOLDS = 5

MIN_DRAWN = 30
"""Minimum number of requested pairs. A pair is requested if it was drawn at random or comes from
the review queue; all other pairs are volunteered. If there are fewer requested pairs than this
minimum, volunteered pairs count as requested pairs, too."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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
    pairs = log.pairs(calibration.match_fingerprint())
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
