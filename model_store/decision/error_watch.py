r"""The error rate of verdict `match`, estimated from reviews of randomly drawn matches.

Match j was served with the predicted error f_j, and is drawn for review with probability π_j. Let
ξ_j be 1 if the match is drawn, and y_j be 1 if the match is wrong. Then

    Z_j = f_j + (y_j − f_j) ξ_j / π_j

has the expectation P(y_j = 1) for any f_j. The weight 1 / π_j removes the bias of the draw. The
control variate f_j removes most of the variance that the random draw adds (active inference: Zrnic
& Candès 2024). An undrawn match adds only f_j to Σ Z_j. So each drawn match is stored with sums
over the undrawn matches since the previous draw. A drawn match and these undrawn matches form a
block. `ReviewDraws` computes the probabilities π of the draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model_store.decision.calibration import Calibration

ALARM = math.log(100)
"""Log capital at which a test fires. The capital starts at 1. Under the null hypothesis, the
probability that the capital ever reaches 100 is at most 1/100 (Ville 1939)."""


class Jumper:
    r"""Capital that is split between bets, with transfers between the bets (Vovk et al. 2021).

    Bet k multiplies its share s_k of the capital by a factor f_k. J is the part of the capital that
    moves between the bets at each observation:

        s_k ← ((1 − J) s_k + J w_k) f_k,    capital ← capital · Σ_k s_k

    If each factor is positive and its conditional expectation given the past is at most 1, the
    capital is a test supermartingale, and `ALARM` is valid after every observation.

    Parameters
    ----------
    weights : (k,) initial share w_k of each bet; the shares sum to 1.
    rate : J; if J is 0, no capital moves between the bets.
    """

    def __init__(self, weights: Sequence[float], rate: float) -> None:
        self._rate = rate
        self._moved = [rate * weight for weight in weights]
        self.shares = list(weights)
        self.log_capital = 0.0

    def grow(self, factors: Sequence[float]) -> None:
        """Multiply the bets by the (k,) factors of one observation."""
        stays = 1 - self._rate
        grown = [
            (stays * share + moved) * factor
            for share, moved, factor in zip(self.shares, self._moved, factors, strict=True)
        ]
        total = sum(grown)
        self.log_capital += math.log(total)
        self.shares = [share / total for share in grown]


CONFIDENCE = 0.95
"""The confidence level of the interval of the error rate."""

MIN_REVIEWS = 30
"""Minimum number of reviews for an interval; with fewer reviews, the interval is [0, 1]. The
confidence level is only asymptotic."""

_NARROWEST_AT = 200
"""Number of reviews at which the interval is narrowest."""

_BETS = (0.5, 1.0, 2.0, 3.5)
"""Sizes a of the bets, see `ErrorTest`. All sizes are below 4, so that the capital stays positive
after a correct match."""

_JUMP = 0.001
"""Part of the capital that moves between the bets and a reserve at each review. The reserve keeps
capital to detect a late rise of the error rate."""


@dataclass(frozen=True, slots=True)
class MatchDraw:
    """A match drawn for review, and the undrawn matches since the previous draw.

    Attributes
    ----------
    predicted : f, the predicted probability that the match is wrong, at most π / (4 · least).
    probability : π, the probability of the draw; 1 if all matches are drawn.
    least : lower bound of π for every match.
    n_before : number of the undrawn matches.
    predicted_before : Σ f of the undrawn matches.
    squares_before : Σ f² of the undrawn matches.
    """

    predicted: float
    probability: float = 1.0
    least: float = 1.0
    n_before: int = 0
    predicted_before: float = 0.0
    squares_before: float = 0.0

    def corrected(self, *, wrong: bool) -> float:
        """Return Z, an unbiased estimate of y: 1 if the match is wrong, else 0."""
        return self.predicted + (wrong - self.predicted) / self.probability


@dataclass(frozen=True, slots=True)
class MatchReview:
    """The review of a drawn match."""

    wrong: bool
    draw: MatchDraw


@dataclass(frozen=True, slots=True)
class ErrorEstimate:
    """The error rate of served matches (None without a review), and its interval."""

    rate: float | None
    interval: tuple[float, float]


@dataclass(slots=True)
class BlockSums:
    """Sums over the undrawn matches since the last draw."""

    n: int = 0
    predicted: float = 0.0
    squares: float = 0.0

    def add(self, predicted: float) -> None:
        """Count a match that is not drawn."""
        self.n += 1
        self.predicted += predicted
        self.squares += predicted * predicted

    def close(self, predicted: float, probability: float, least: float) -> MatchDraw:
        """Return a drawn match with the sums of its block, and begin the next block."""
        draw = MatchDraw(predicted, probability, least, self.n, self.predicted, self.squares)
        self.n, self.predicted, self.squares = 0, 0.0, 0.0
        return draw


class ErrorTest:
    r"""A sequential test of "the error rate of `match` is at most m", by betting.

    The method is from Waudby-Smith & Ramdas 2024, Estimating means of bounded random variables by
    betting. Each bet has a parameter λ and a share of the capital. For each served match, this
    share is multiplied by

        1 + λ (Z − m),    λ = a least / (1 + 4 m least),    0 < a < 4

    The expectation of this factor is at most 1 if P(y = 1 | the past) ≤ m. The factor is positive
    because f ≤ π / (4 least). For an undrawn match, the factor is replaced by its lower bound exp(u
    − u²), with u = λ (f − m). This bound needs only the sums of the block. Capital moves between
    several bets and a reserve. The test is valid after every review: under the null hypothesis, the
    probability that the capital ever reaches 100 is at most 1/100. The test assumes that wrong and
    correct drawn matches are reviewed equally often.

    Parameters
    ----------
    max_error : m, the accepted error rate, below 1.
    """

    def __init__(self, max_error: float) -> None:
        self._rate = max_error
        n_bets = 1 + len(_BETS)
        self._capital = Jumper([1 / n_bets] * n_bets, rate=_JUMP)
        self.n = 0
        self.n_wrong = 0
        self.alarmed = False

    @property
    def log_evidence(self) -> float:
        """Log capital in nats, initially 0."""
        return self._capital.log_capital

    def observe(self, review: MatchReview) -> None:
        """Update the capital with the block of a drawn match and the review of this match."""
        self.n += 1
        self.n_wrong += review.wrong
        self._capital.grow([1.0, *(self._factor(bet, review) for bet in _BETS)])
        self.alarmed = self.alarmed or self.log_evidence >= ALARM

    def _factor(self, bet: float, review: MatchReview) -> float:
        """Return the factor of one bet for a block."""
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
    r"""Estimate the error rate of matches from k reviews. The reviews may have any order.

    The estimate is Σ T_b / Σ n_b, where T_b is the sum of Z and n_b the number of matches in block
    b. The interval is an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy &
    Ramdas 2024, theorem 2.2). With many reviews, the interval is valid for all k simultaneously.
    The interval is narrowest at k = `_NARROWEST_AT`:

        ± σ / n̄ · √(2 (k ρ² + 1) / (k² ρ²) · log(√(k ρ² + 1) / (1 − confidence)))

    Here σ² is the mean of (T_b − rate · n_b)², but at least the mean of f (1 − f) / π². This
    minimum is the expectation of σ² if the predictions are right. The minimum keeps the interval
    wide enough after many correct matches.

    Parameters
    ----------
    confidence : probability that the interval contains the rate.
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
        probabilities = calibration.feedback.of(evidence.first_probabilities)
        doubts = np.sqrt(probabilities * (1 - probabilities))
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
