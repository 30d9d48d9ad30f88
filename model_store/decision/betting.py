"""Testing by betting: capital that grows is evidence, and may be looked at at any time."""

from __future__ import annotations

import math
from collections.abc import Sequence

ALARM = math.log(100)
"""Log capital at which a test fires: while its null hypothesis holds, capital that begins at 1 ever
gets there with probability 1/100 at most (Ville 1939)."""


class Jumper:
    r"""Capital spread over bets, a part of which moves between them (Vovk et al. 2021).

    Bet k multiplies its share s_k of the capital by a factor f_k, with J the rate of movement:

        s_k ← ((1 − J) s_k + J w_k) f_k,    capital ← capital · Σ_k s_k

    Where each factor is positive and has an expectation of at most 1, given what came before, the
    capital is a test supermartingale.

    Parameters
    ----------
    weights : (k,) share w_k of each bet to begin with; they sum to 1.
    rate : J; 0 leaves the capital of each bet where it is.
    """

    def __init__(self, weights: Sequence[float], rate: float) -> None:
        self._rate = rate
        self._moved = [rate * weight for weight in weights]
        self.shares = list(weights)
        self.log_capital = 0.0

    def grow(self, factors: Sequence[float]) -> None:
        """Multiply by the (k,) factors of one observation."""
        stays = 1 - self._rate
        grown = [
            (stays * share + moved) * factor
            for share, moved, factor in zip(self.shares, self._moved, factors, strict=True)
        ]
        total = sum(grown)
        self.log_capital += math.log(total)
        self.shares = [share / total for share in grown]
