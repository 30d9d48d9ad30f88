"""Testing by betting: growing capital is evidence, valid at any time."""

from __future__ import annotations

import math
from collections.abc import Sequence

ALARM = math.log(100)
"""Log capital at which a test fires. Under the null hypothesis, capital that starts at 1 ever
reaches 100 with probability at most 1/100 (Ville 1939)."""


class Jumper:
    r"""Capital divided over bets; a part of it moves between the bets (Vovk et al. 2021).

    Bet k multiplies its share s_k of the capital by a factor f_k, with J the rate of movement:

        s_k ← ((1 − J) s_k + J w_k) f_k,    capital ← capital · Σ_k s_k

    If each factor is positive and its conditional expectation given the past is at most 1, the
    capital is a test supermartingale.

    Parameters
    ----------
    weights : (k,) initial share w_k of each bet; the shares sum to 1.
    rate : J; with 0, no capital moves between bets.
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
