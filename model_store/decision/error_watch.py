r"""How often verdict `match` is wrong, from reviews of matches drawn with known probabilities.

Match j is drawn for review with probability π_j and was served with the predicted error f_j. With
ξ_j = 1 if it is drawn and y_j = 1 if it is wrong,

    Z_j = f_j + (y_j − f_j) ξ_j / π_j

has the expectation P(y_j = 1), whatever f_j is: the inverse-probability weight removes the bias of
the draw, and f_j as a control variate most of its variance (active inference: Zrnic & Candès 2024).
Σ Z_j needs of matches that are not drawn only the sum of f_j, so that each drawn match is kept with
the sums over those served since the one before: a block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_store.decision.betting import ALARM, Jumper

CONFIDENCE = 0.95
"""The confidence level of the interval of the error rate."""

MIN_REVIEWS = 30
"""Reviews below which the interval is [0, 1]: its level is asymptotic."""

_NARROWEST_AT = 200
"""Reviews at which the interval is narrowest for its level."""

_BETS = (0.5, 1.0, 2.0, 3.5)
"""Sizes of the bets, below 4: a match that is right then never takes all capital."""

_JUMP = 0.001
"""Rate at which capital moves between the bets and a reserve, so that an error rate that rises late
is found as well."""

_LEAST_RATE = 1e-6
"""An accepted error rate of 0 is taken for this: one error in a million matches."""


@dataclass(frozen=True, slots=True)
class MatchDraw:
    """A match drawn for review, and the undrawn matches served since the draw before.

    Attributes
    ----------
    predicted : f, the predicted probability that it is wrong, at most π / (4 · least).
    probability : π, with which it was drawn; 1 where all were drawn.
    least : lower bound of π for every match.
    n_before, predicted_before, squares_before : number of the undrawn matches, Σ f and Σ f².
    """

    predicted: float
    probability: float = 1.0
    least: float = 1.0
    n_before: int = 0
    predicted_before: float = 0.0
    squares_before: float = 0.0

    def corrected(self, *, wrong: bool) -> float:
        """Return Z, the unbiased estimate of whether it is wrong."""
        return self.predicted + (wrong - self.predicted) / self.probability


@dataclass(frozen=True, slots=True)
class MatchReview:
    """The review of a drawn match."""

    wrong: bool
    draw: MatchDraw


@dataclass(frozen=True, slots=True)
class ErrorEstimate:
    """The error rate of served matches: None without a review; and its interval."""

    rate: float | None
    interval: tuple[float, float]


@dataclass(slots=True)
class BlockSums:
    """Counts the matches since the last draw."""

    n: int = 0
    predicted: float = 0.0
    squares: float = 0.0

    def add(self, predicted: float) -> None:
        """Count a match that is not drawn."""
        self.n += 1
        self.predicted += predicted
        self.squares += predicted * predicted

    def close(self, predicted: float, probability: float, least: float) -> MatchDraw:
        """Return a drawn match with the block before it, and begin the next block."""
        draw = MatchDraw(predicted, probability, least, self.n, self.predicted, self.squares)
        self.n, self.predicted, self.squares = 0, 0.0, 0.0
        return draw


class ErrorTest:
    r"""An e-process against "the error rate of `match` is at most m", by betting.

    Waudby-Smith & Ramdas (2024, Estimating means of bounded random variables by betting): bet λ
    multiplies its share of the capital for each served match by

        1 + λ (Z − m),    λ = a least / (1 + 4 m least),    0 < a < 4

    whose expectation is at most 1 while P(y = 1 | the past) ≤ m. It is positive since f ≤ π / (4
    least). Of undrawn matches, where u = λ (f − m), the factor is replaced by its lower bound
    exp(u − u²), so that their sums are enough. Capital moves between several bets and a reserve.
    It may be looked at after every review: under the null hypothesis it ever reaches 100 with
    probability 1/100 at most, if whether a drawn match is reviewed does not depend on whether it
    is wrong.

    Parameters
    ----------
    max_error : m, the error rate that is accepted, below 1.
    """

    def __init__(self, max_error: float) -> None:
        self._rate = max(max_error, _LEAST_RATE)
        n_bets = 1 + len(_BETS)
        self._capital = Jumper([1 / n_bets] * n_bets, rate=_JUMP)
        self.n = 0
        self.n_wrong = 0
        self.alarmed = False

    @property
    def log_evidence(self) -> float:
        """Log capital, nats; 0 to begin with."""
        return self._capital.log_capital

    def observe(self, review: MatchReview) -> None:
        """Take in the review of one drawn match, and the matches before it."""
        self.n += 1
        self.n_wrong += review.wrong
        self._capital.grow([1.0, *(self._factor(bet, review) for bet in _BETS)])
        self.alarmed = self.alarmed or self.log_evidence >= ALARM

    def _factor(self, bet: float, review: MatchReview) -> float:
        """Return the factor of one bet over a block."""
        draw, rate = review.draw, self._rate
        size = bet * draw.least / (1 + 4 * rate * draw.least)
        first = draw.predicted_before - draw.n_before * rate
        second = (
            draw.squares_before - 2 * rate * draw.predicted_before + draw.n_before * rate * rate
        )
        return math.exp(size * first - size * size * second) * (
            1 + size * (draw.corrected(wrong=review.wrong) - rate)
        )


def estimate_error(reviews: Sequence[MatchReview], confidence: float = CONFIDENCE) -> ErrorEstimate:
    r"""Estimate the error rate of matches from k reviews, oldest first or in any order.

    The estimate is Σ T_b / Σ n_b, where T_b is the sum of Z and n_b the number of matches in block
    b. Its interval is an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy &
    Ramdas 2024, theorem 2.2), valid at every k at once for many reviews, and narrowest at
    `_NARROWEST_AT`:

        ± σ / n̄ · √(2 (k ρ² + 1) / (k² ρ²) · log(√(k ρ² + 1) / (1 − confidence)))

    where σ² is the mean of (T_b − rate · n_b)², but no less than the mean of f (1 − f) / π², which
    is expected of right predictions: a run of right matches does not make it narrow.

    Parameters
    ----------
    confidence : probability that the rate lies inside, at most 1.
    """
    if not reviews:
        return ErrorEstimate(None, (0.0, 1.0))
    table = np.array(
        [
            (
                one.draw.n_before + 1,
                one.draw.predicted_before + one.draw.corrected(wrong=one.wrong),
                one.draw.predicted * (1 - one.draw.predicted) / one.draw.probability**2,
            )
            for one in reviews
        ]
    )
    n, total, expected = table.T
    k = len(reviews)
    rate = float(total.sum() / n.sum())
    if k < MIN_REVIEWS:
        return ErrorEstimate(min(max(rate, 0.0), 1.0), (0.0, 1.0))
    variance = max(float(np.mean((total - rate * n) ** 2)), float(expected.mean()))
    nats = -math.log1p(-confidence)
    spread = k * (2 * nats + math.log(2 * nats + 1)) / _NARROWEST_AT
    width = math.sqrt(2 * (spread + 1) / (k * spread) * (nats + 0.5 * math.log(spread + 1)))
    half = math.sqrt(variance) / float(n.mean()) * width
    rate = min(max(rate, 0.0), 1.0)
    return ErrorEstimate(rate, (max(rate - half, 0.0), min(rate + half, 1.0)))
