"""What result sets choose among: the nearest item of each label that a query finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from index_builder.calibration.probabilities import CrossFit, Group
from model_store.decision import ResultSetRule
from model_store.decision.result_sets import MAX_LABELS
from model_store.decision.signals import first_of_each_label

_ROWS = 256
"""Queries whose signals are computed at once: all of them would take gigabytes."""


@dataclass(frozen=True, slots=True)
class LabelChoices:
    """Of B queries, the nearest item of each label they find, up to `MAX_LABELS`.

    Attributes
    ----------
    probabilities : (B, `MAX_LABELS`) match probability, by fits that have not seen the query; −1
        where a query finds fewer labels.
    matches : (B, `MAX_LABELS`) whether it is a true match.
    """

    probabilities: NDArray[np.float64]
    matches: NDArray[np.bool_]

    @classmethod
    def of(cls, group: Group, fits: CrossFit) -> LabelChoices:
        """Of the first queries that were cross-fitted."""
        observed = group.observed
        places = np.zeros((len(observed), MAX_LABELS), dtype=np.int64)
        exists = np.zeros(places.shape, dtype=bool)
        for row, codes in enumerate(observed.label_codes):
            found = first_of_each_label(codes, MAX_LABELS)
            places[row, : len(found)] = found
            exists[row, : len(found)] = True
        log_odds = np.empty(places.shape)
        for start in range(0, len(places), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(places)))
            some = Group(observed.at(rows), group.outlier_scores[rows], group.weight)
            log_odds[rows] = fits.log_odds(some.signals(places[rows]), rows)
        return cls(
            np.where(exists, expit(log_odds), -1.0),
            np.take_along_axis(observed.matches, places, axis=1) & exists,
        )

    def critical(self) -> NDArray[np.float64]:
        """`ResultSetRule.critical`, (B,), in the order of the queries."""
        of_match = np.where(self.matches, self.probabilities, -1.0).max(axis=1)
        likeliest = self.probabilities.argmax(axis=1)[:, None]
        is_right = np.take_along_axis(self.matches, likeliest, axis=1)[:, 0]
        return np.where(is_right, np.inf, of_match)

    def outcome(self, rule: ResultSetRule, coverage: float) -> dict[str, Any]:
        """What sets of a coverage come to on these queries, for the report."""
        sizes, hits = [], []
        for probabilities, matches in zip(self.probabilities, self.matches, strict=True):
            places = np.flatnonzero(probabilities >= 0)
            chosen = rule.choose(places, probabilities[places], coverage).places
            sizes.append(len(chosen))
            hits.append(matches[chosen].any())
        return {
            "coverage": coverage,
            "promised": rule.threshold(coverage) is not None,
            "covered": float(np.mean(hits)),
            "mean_size": float(np.mean(sizes)),
        }
