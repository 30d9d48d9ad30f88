"""What result sets choose among: the nearest item of each label that a query finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.probabilities import Examples
from model_store.decision import ResultSetRule


@dataclass(frozen=True, slots=True)
class LabelChoices:
    """Of B queries, the labels they find, nearest first.

    Attributes
    ----------
    probabilities : (B, g) match probability, by fits that have not seen the query; −1 where a query
        finds fewer labels.
    matches : (B, g) whether it is a true match.
    folds : (B,) of the cross-fit.
    """

    probabilities: NDArray[np.float64]
    matches: NDArray[np.bool_]
    folds: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        examples: Examples,
        probabilities: NDArray[np.float64],
        folds: NDArray[np.int64],
        n_queries: int,
    ) -> LabelChoices:
        """Of the first ``n_queries`` that were cross-fitted; see `cross_fitted`."""
        rows = np.flatnonzero(examples.queries < n_queries)
        at = examples.queries[rows], examples.places[rows]
        shape = n_queries, int(examples.counts[:n_queries].max())
        of_label, matches = np.full(shape, -1.0), np.zeros(shape, dtype=bool)
        of_label[at], matches[at] = probabilities[rows], examples.matches[rows]
        return cls(of_label, matches, folds[:n_queries])

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
