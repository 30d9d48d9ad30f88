"""The labels among the items that a query has found, and their match probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.decision.calibration import Calibration
from model_store.decision.hierarchy import likeliest_parents
from model_store.decision.logistic import choice_probabilities
from model_store.decision.promises import Promises
from model_store.decision.signals import labels_found, signals
from model_store.predictive import Predictive
from model_store.verdicts import FilterMeans, Order

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The items that a search found for one query.

    Attributes
    ----------
    similarities : (n,) of the items found: first the list of the whole gallery's nearest,
        descending; then items that are shown though others are nearer, if any.
    label_codes : (n,) of these items, −1 where an item has no label.
    n_listed : how many of them are the list that signals are taken from.
    listed : (m,) places of the items that may be described, nearest first.
    allowed : (n,) which items pass the filter; None without a filter.
    limit : how many are described; None for all of ``listed``.
    parents : (n, L) of the labels, see `Hierarchy.of_labels`; None where labels have none.
    uncertainty : see `Assessment`; None where it is not known.
    """

    similarities: Floats
    label_codes: NDArray[np.int32]
    n_listed: int
    listed: Integers
    allowed: NDArray[np.bool_] | None = None
    limit: int | None = None
    parents: NDArray[np.int32] | None = None
    uncertainty: float | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which terms a query is decided.

    Attributes
    ----------
    alpha : rate of false alarms of the outlier flag.
    coverage : of the result set; None for the calibration's.
    expected_absent : share of absent queries among all; None for the default.
    source : where the query comes from; None for anywhere.
    filter_means : what a filter says.
    stale : why the calibration does not hold, so that nothing is a match; None where it does.
    drift : why its guarantees do not hold though verdicts are given; None where they do.
    order : what the first items come first by.
    """

    alpha: float
    coverage: float | None = None
    expected_absent: float | None = None
    source: str | None = None
    filter_means: FilterMeans = "show"
    stale: str | None = None
    order: Order = "similarity"
    drift: str | None = None


@dataclass(frozen=True, slots=True)
class FoundLabels:
    """The labels among the items found.

    Attributes
    ----------
    places, belong : (g,) and (g, n), see `labels_found`.
    values : (g, S) signals.
    classes : (g,) size classes.
    n_in_list : how many of them are in the list that signals are taken from: the first ones.
    """

    places: Integers
    belong: NDArray[np.bool_]
    values: Floats
    classes: NDArray[np.int8]
    n_in_list: int

    @classmethod
    def of(
        cls, calibration: Calibration, predictive: Predictive, retrieved: Retrieved
    ) -> FoundLabels:
        """Find the labels, and take their signals."""
        places, belong = labels_found(retrieved.label_codes)
        codes = retrieved.label_codes[places]
        similarities = retrieved.similarities
        values = signals(
            similarities,
            places,
            calibration.means.similarities(predictive.direction, codes, similarities[places]),
            predictive.outlier_score,
            retrieved.n_listed,
        )
        n_in_list = int(places.searchsorted(retrieved.n_listed))
        return cls(places, belong, values, calibration.classes_of(codes), n_in_list)

    def probabilities(self, calibration: Calibration, shift: float) -> Floats:
        """Return the match probabilities (g,) with ``shift`` added to all log-odds.

        Labels beyond the list share, by a second choice, what the first leaves for no match: the
        model was fitted to lists, so that no item beyond one may change the probabilities in it.
        """
        log_odds = calibration.match.log_odds(self.values) + shift
        listed = choice_probabilities(log_odds[: self.n_in_list])
        if self.n_in_list == len(log_odds):
            return listed
        left = max(1 - float(np.add.reduce(listed)), 0.0)  # of rounding
        beyond = left * choice_probabilities(log_odds[self.n_in_list :])
        return np.concatenate([listed, beyond])


@dataclass(frozen=True, slots=True)
class MatchProbabilities:
    """Match probabilities of the labels among the items found.

    Attributes
    ----------
    fitted : (g,) at the share of absent queries that they were fitted with.
    expected : (g,) at the share that is expected.
    final : (g,) corrected by feedback and, where a match is known to pass, by the filter.
    nothing : probability that no item that may be listed matches.
    known : what all are multiplied by where a match is known to pass the filter; else 1.
    """

    fitted: Floats
    expected: Floats
    final: Floats
    nothing: float
    known: float = 1.0

    @classmethod
    def of(
        cls,
        calibration: Calibration,
        promises: Promises,
        found: FoundLabels,
        allowed: NDArray[np.bool_] | None,
        terms: Terms,
    ) -> MatchProbabilities:
        """Compute them; ``allowed`` (g, n) are the items of each label that may be listed."""
        fitted = found.probabilities(calibration, 0.0)
        moved = promises.shift != 0
        expected = found.probabilities(calibration, promises.shift) if moved else fitted
        final = calibration.feedback.of(expected)
        total = float(np.add.reduce(final))
        if total > 1:  # labels are corrected one by one, and only one can be right
            final, total = final / total, 1.0
        nothing, known = 1 - total, 1.0
        if allowed is not None:
            passing = min(float(final @ allowed.any(axis=1)), 1.0)
            if terms.filter_means == "known":
                whole = max(nothing + passing, np.finfo(float).tiny)
                final, nothing, known = final / whole, nothing / whole, 1 / whole
            else:
                nothing = 1 - passing
        return cls(fitted, expected, final, nothing, known)

    def of_parents(
        self,
        calibration: Calibration,
        parents: NDArray[np.int32],
        allowed: NDArray[np.bool_] | None,
    ) -> tuple[NDArray[np.int32], Floats]:
        """Return the likeliest parent at each level, and the probability of each, (L,).

        Corrected by feedback and by a known filter, as those of labels are.

        Parameters
        ----------
        parents : (g, L) of the labels in the list; the sums were calibrated without any beyond it.
        allowed : (g, n) items of each label that may be listed; None for all.
        """
        n = len(parents)
        expected = self.expected[:n]
        if allowed is not None:
            expected = np.where(allowed[:n].any(axis=1), expected, 0.0)
        places, sums = likeliest_parents(parents, expected)
        return places, np.minimum(calibration.feedback.of(sums) * self.known, 1.0)
