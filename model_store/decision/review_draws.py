"""The probability that a served answer is drawn for review."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.decision.calibration import Calibration

EVEN_PART = 0.5
"""Minimum of ``even`` in `ReviewDraws`. This minimum limits the weights 1 / π."""


@dataclass(frozen=True, slots=True)
class ReviewDraws:
    """The draw probabilities: proportional to √(p (1 − p)), with a minimum (Zrnic & Candès 2024).

        π = min(1, share · (even + (1 − even) √(p (1 − p)) / mean))

    Here p is the match probability of the first item, and ``even`` is at least `EVEN_PART`.
    ``mean`` is the mean of √(p (1 − p)) over calibration queries. This mean has two values. Answers
    with verdict `match` use the mean over the calibration queries with this verdict. All other
    answers use the mean over the other calibration queries. About ``share`` of the answers are
    drawn. If p is right, draws in proportion to √(p (1 − p)) estimate an error rate with the least
    variance (active inference). The minimum of π adds a little variance.

    Attributes
    ----------
    share : share of answers to draw.
    of_matches : ``mean`` for answers with verdict `match`.
    of_others : ``mean`` for all other answers.
    """

    share: float
    of_matches: float
    of_others: float

    @classmethod
    def of(cls, calibration: Calibration, share: float) -> ReviewDraws:
        """Compute ``of_matches`` and ``of_others`` from the calibration queries."""
        if calibration.outdated is not None:
            return cls(share, math.inf, math.inf)
        evidence = calibration.evidence.of_order(calibration.order)
        doubts = _doubt(calibration.feedback.of(evidence.first_probabilities))
        accepted = calibration.promises().accepted
        everyone = float(doubts.mean()) or math.inf
        means = (
            float(doubts[some].mean()) if some.any() else 0.0 for some in (accepted, ~accepted)
        )
        return cls(share, *(mean or everyone for mean in means))

    @property
    def least(self) -> float:
        """The minimum draw probability of an answer: ``share`` · ``even``."""
        return self.share * max(EVEN_PART, self.share)

    def probability(self, match_probability: float | None, *, is_match: bool) -> float:
        """Return π of an answer; `least` if its first item has no probability."""
        if match_probability is None:
            return self.least
        doubt = math.sqrt(match_probability * (1 - match_probability))
        relative = doubt / (self.of_matches if is_match else self.of_others)
        return min(1.0, self.least + (self.share - self.least) * relative)

    def predicted_error(self, wrong: float, probability: float) -> float:
        """Return f of `MatchDraw`: the served error probability, limited to π / (4 least)."""
        return min(wrong, probability / (4 * self.least))


def _doubt(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    doubts: NDArray[np.float64] = np.sqrt(probabilities * (1 - probabilities))
    return doubts
