"""The thresholds from which answers of a level above labels are given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from model_store.decision.evidence import Evidence
from model_store.decision.operating import Stream, Thresholds

ROLL_UP_LEVELS = np.linspace(0.05, 1.0, 20)
"""Shares of the queries left over, with a match, that are accepted, from the first to the last
tested: but a few of them may be sure at a level above."""

Floats = NDArray[np.float64]


def right_if_present(evidence: Evidence) -> Floats:
    """Return the probability (n,) of each first answer, given that the query has a match.

    P / (1 − P(no match)), whatever the share of absent queries.
    """
    any_match = np.maximum(1 - evidence.no_match_probabilities, np.finfo(float).tiny)
    given: Floats = np.minimum(evidence.first_probabilities / any_match, 1.0)
    return given


def widest_roll_up(stream: Stream, if_present: Floats, max_error: float) -> float | None:
    """Return the lowest threshold that promises an error of at most ``max_error``; None for none.

    Tested in a fixed sequence, as those of matches are, see `Stream.widest`.

    Parameters
    ----------
    if_present : (n,) see `right_if_present`.
    """
    return stream.last_promised(roll_up_sequence(stream, if_present, max_error), max_error)


def roll_up_sequence(stream: Stream, if_present: Floats, max_error: float) -> Thresholds:
    """Return falling thresholds, from that on whose error has the least bound as foretold.

    Of those that could be promised if all were right. That depends on the probabilities, and on
    which queries are absent, not on what was right. Few queries are left over, and of the surest a
    single wrong one, or the few labels of absent queries, would end the sequence before it has
    begun.
    """
    thresholds = stream.thresholds(ROLL_UP_LEVELS)
    none_wrong = replace(stream, wrong=stream.absent.astype(np.float64))
    possible = [
        place
        for place, (_, accepted) in enumerate(thresholds)
        if none_wrong.error_bound(accepted) <= max_error
    ]
    foretold = replace(stream, wrong=np.where(stream.absent, 1.0, 1 - if_present))
    bounds = [foretold.error_bound(thresholds[place][1]) for place in possible]
    return thresholds[possible[int(np.argmin(bounds))] :] if possible else []
