"""Measures result sets.

A query has one candidate for each label that it finds: the nearest item of this label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index_builder.calibration.probabilities import Examples
from model_store.decision import Calibration, Evidence, ResultSetRule


@dataclass(frozen=True, slots=True)
class LabelChoices:
    """The labels that Q queries find, nearest first.

    Attributes
    ----------
    probabilities : (Q, g) cross-fitted match probabilities, padded with −1.
    matches : (Q, g) whether the label is a true match.
    codes : (Q, g) codes of the labels.
    folds : (Q,) folds of the cross-fit.
    """

    probabilities: NDArray[np.float64]
    matches: NDArray[np.bool_]
    codes: NDArray[np.int32]
    folds: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        examples: Examples,
        probabilities: NDArray[np.float64],
        folds: NDArray[np.int64],
    ) -> LabelChoices:
        """Arrange the labels and their cross-fitted probabilities by query; see `cross_fitted`."""
        at = examples.queries, examples.places
        shape = len(examples.starts), int(examples.counts.max())
        of_label, matches = np.full(shape, -1.0), np.zeros(shape, dtype=bool)
        codes = np.full(shape, -1, dtype=np.int32)
        of_label[at], matches[at], codes[at] = probabilities, examples.matches, examples.codes
        return cls(of_label, matches, codes, folds)

    def critical(self) -> NDArray[np.float64]:
        """Return `Evidence.critical`, (Q,), in the order of the queries."""
        of_match = np.where(self.matches, self.probabilities, -1.0).max(axis=1)
        likeliest = self.probabilities.argmax(axis=1)[:, None]
        is_right = np.take_along_axis(self.matches, likeliest, axis=1)[:, 0]
        return np.where(is_right, np.inf, of_match)

    def outcomes(
        self, coverages: Sequence[float], evidence: Evidence, calibration: Calibration
    ) -> list[dict[str, Any]]:
        """Measure cross-fitted result sets at each coverage.

        Parameters
        ----------
        evidence : evidence of all queries. Only the result sets of queries with a match are
            measured.
        calibration : calibration of the gallery.
        """
        n_labels, delta = calibration.n_labels, calibration.delta
        sizes: list[list[int]] = [[] for _ in coverages]
        hits: list[list[bool]] = [[] for _ in coverages]
        for fold in np.unique(self.folds):
            rule = ResultSetRule(evidence.at(self.folds != fold), n_labels, delta)
            for row in np.flatnonzero((self.folds == fold) & ~evidence.absent):
                places = np.flatnonzero(self.probabilities[row] >= 0)
                classes = calibration.classes_of(self.codes[row, places])
                of_labels, matches = self.probabilities[row, places], self.matches[row]
                for number, coverage in enumerate(coverages):
                    chosen = rule.choose(places, of_labels, classes, coverage).places
                    sizes[number].append(len(chosen))
                    hits[number].append(bool(matches[chosen].any()))
        whole = ResultSetRule(evidence, n_labels, delta)
        return [
            {
                "coverage": coverage,
                "promised": whole.shortfall(coverage) is None,
                "promised_for": list(whole.promised_for(coverage)),
                "covered": float(np.mean(hits[number])),
                "mean_size": float(np.mean(sizes[number])),
            }
            for number, coverage in enumerate(coverages)
        ]
