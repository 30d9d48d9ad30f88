"""Sequential tests by betting: growing capital is evidence against the null hypothesis."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
