"""A running test of whether verdict `match` is wrong more often than its owner accepts."""

from __future__ import annotations

import math

from scipy.special import betaln, xlog1py, xlogy

from model_store.decision.betting import ALARM, Jumper
from model_store.decision.crossing import first_where

CONFIDENCE = 0.95
"""The confidence level of the interval of the error rate."""

_ODDS = (1.5, 2.0, 3.0)
"""The factors by which the bets take the odds of an error to exceed the accepted odds."""

_JUMP = 0.001
"""Rate at which capital moves between the bets and a reserve, so that an error rate that rises late
is found as well."""

_LEAST_RATE = 1e-6
"""An accepted error rate of 0 is taken for this: one error in a million matches."""

_STEPS = 10**9
"""Parts of an error rate of 1 to which its interval is given."""


class ErrorTest:
    r"""An e-process against "the error rate of `match` is at most m", by betting.

    Waudby-Smith & Ramdas (2024, Estimating means of bounded random variables by betting): with
    x = 1 for a wrong match and 0 for a right one, bet λ multiplies its share of the capital by

        1 + λ (x − m),    0 ≤ λ < 1 / m

    whose expectation is at most 1 while P(x = 1 | the past) ≤ m. With λ = (q − m) / (m (1 − m))
    that is the likelihood ratio of an error rate q > m to m. The capital moves between several q
    and a reserve. It may be looked at after every answer: under the null hypothesis it ever
    reaches 100 with probability 1/100 at most.

    Parameters
    ----------
    max_error : m, the error rate that is accepted, below 1.
    """

    def __init__(self, max_error: float) -> None:
        rate = max(max_error, _LEAST_RATE)
        odds = rate / (1 - rate)
        alternatives = [times * odds / (1 + times * odds) for times in _ODDS]
        self._wrong = [1.0, *(q / rate for q in alternatives)]
        self._right = [1.0, *((1 - q) / (1 - rate) for q in alternatives)]
        self._capital = Jumper([1 / (1 + len(_ODDS))] * (1 + len(_ODDS)), rate=_JUMP)
        self.n = 0
        self.n_wrong = 0
        self.alarmed = False

    @property
    def log_evidence(self) -> float:
        """Log capital, nats; 0 to begin with."""
        return self._capital.log_capital

    def observe(self, *, wrong: bool) -> None:
        """Take in what was said of one match that was drawn at random."""
        self.n += 1
        self.n_wrong += wrong
        self._capital.grow(self._wrong if wrong else self._right)
        self.alarmed = self.alarmed or self.log_evidence >= ALARM


def error_interval(n: int, n_wrong: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    r"""Return the bounds of an error rate that does not change, valid at every n at once.

    A confidence sequence (Robbins 1970): the rates p that a mixture of likelihood ratios over the
    prior Beta(½, ½) has never had evidence against, with k = ``n_wrong``:

        B(k + ½, n − k + ½) / B(½, ½) < p^k (1 − p)^(n − k) / (1 − confidence)

    Parameters
    ----------
    n : matches that were reviewed.
    n_wrong : of them were wrong.
    confidence : probability that the rate lies inside for all n.
    """
    mixed = float(betaln(n_wrong + 0.5, n - n_wrong + 0.5) - betaln(0.5, 0.5))
    limit = -math.log1p(-confidence)

    def evidence(rate: float) -> float:
        """Log of the mixture's likelihood ratio to ``rate``, less what rejects it."""
        known = float(xlogy(n_wrong, rate) + xlog1py(n - n_wrong, -rate))
        return mixed - known - limit

    inside = round(_STEPS * n_wrong / n) if n else _STEPS // 2
    lower = first_where(lambda step: evidence(step / _STEPS) <= 0, 0, inside) - 1
    upper = first_where(lambda step: evidence(step / _STEPS) > 0, inside, _STEPS)
    return max(lower, 0) / _STEPS, upper / _STEPS
