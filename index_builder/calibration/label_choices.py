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
    folds : (B,) of the cross-fit.
    """

    probabilities: NDArray[np.float64]
    matches: NDArray[np.bool_]
    folds: NDArray[np.int64]

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
            log_odds[rows] = fits.log_odds(group.at(rows).signals(places[rows]), rows)
        return cls(
            np.where(exists, expit(log_odds), -1.0),
            np.take_along_axis(observed.matches, places, axis=1) & exists,
            fits.folds[: len(places)],
        )

    def rule(self) -> ResultSetRule:
        """The rule that these queries calibrate."""
        return ResultSetRule(np.sort(self.critical()))

    def critical(self) -> NDArray[np.float64]:
        """`ResultSetRule.critical`, (B,), in the order of the queries."""
        of_match = np.where(self.matches, self.probabilities, -1.0).max(axis=1)
        likeliest = self.probabilities.argmax(axis=1)[:, None]
        is_right = np.take_along_axis(self.matches, likeliest, axis=1)[:, 0]
        return np.where(is_right, np.inf, of_match)

    def outcome(self, coverage: float) -> dict[str, Any]:
        """What sets of a coverage come to, each by a rule from the other folds, for the report."""
        critical, sizes, hits = self.critical(), [], []
        for fold in np.unique(self.folds):
            rule = ResultSetRule(np.sort(critical[self.folds != fold]))
            for row in np.flatnonzero(self.folds == fold):
                places = np.flatnonzero(self.probabilities[row] >= 0)
                chosen = rule.choose(places, self.probabilities[row, places], coverage).places
                sizes.append(len(chosen))
                hits.append(self.matches[row, chosen].any())
        return {
            "coverage": coverage,
            "promised": self.rule().threshold(coverage) is not None,
            "covered": float(np.mean(hits)),
            "mean_size": float(np.mean(sizes)),
        }
