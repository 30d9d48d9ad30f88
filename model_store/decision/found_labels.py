"""The labels of the items found for a query, and their match probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.decision.calibration import Calibration
from model_store.decision.hierarchy import likeliest_parents
from model_store.decision.logistic import choice_probabilities
from model_store.decision.promises import Promises
from model_store.decision.signals import labels_found, signals
from model_store.messages import FilterMeans, Order
from model_store.predictive import Predictive

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The items that a search found for one query.

    Attributes
    ----------
    similarities : (n,) similarities of the found items. The first ``n_listed`` values belong to the
        nearest items in the whole gallery, in descending order. The other values belong to items
        that are not in the result list. The search may also return these items, for example under a
        filter.
    label_codes : (n,) label codes of the found items; −1 for an item without a label.
    n_listed : number of leading items in the result list. The signals are computed from this list.
    listed : (m,) indexes of the items that may be returned, nearest first.
    allowed : (n,) whether each item passes the filter; None without a filter.
    limit : maximum number of returned items; None for all of ``listed``.
    parents : (n, L) parents of the labels, see `Hierarchy.of_labels`; None if labels have no
        parents.
    uncertainty : see `Assessment`; None if not known.
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
    """The options of a decision.

    Attributes
    ----------
    alpha : false-alarm rate of the outlier flag.
    coverage : coverage of the result set; None for the calibration's default.
    expected_absent : share of absent queries; None for the default.
    source : source of the query; None if not known.
    filter_means : meaning of a filter: ``show`` restricts the returned items; ``known`` also states
        that every true match passes the filter.
    stale : reason why the calibration is not valid; None if it is valid. If there is a reason, no
        query gets the verdict `match`.
    drift : reason why the guarantees do not hold; None if they hold. This reason does not change
        the verdict.
    order : order of the result list.
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
    """The labels of the found items.

    Attributes
    ----------
    places : (g,), see `labels_found`.
    belong : (g, n), see `labels_found`.
    values : (g, S) signals.
    classes : (g,) size classes.
    n_in_list : number of leading labels that occur in the result list.
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
        """Find the labels and compute their signals."""
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

        The model was fitted to result lists. So items outside the list must not change the
        probabilities of the listed labels. The no-match probability of the list is then divided
        between the other labels and "no match".
        """
        log_odds = calibration.match.log_odds(self.values) + shift
        listed = choice_probabilities(log_odds[: self.n_in_list])
        if self.n_in_list == len(log_odds):
            return listed
        left = max(1 - float(np.add.reduce(listed)), 0.0)  # against rounding errors
        beyond = left * choice_probabilities(log_odds[self.n_in_list :])
        return np.concatenate([listed, beyond])


@dataclass(frozen=True, slots=True)
class MatchProbabilities:
    """Match probabilities (g,) of the labels of the found items.

    Attributes
    ----------
    fitted : (g,) probabilities for the share of absent queries that was used in the fit.
    expected : (g,) probabilities for the expected share of absent queries.
    final : (g,) ``expected``, corrected by feedback. If the client knows that every true match
        passes the filter, the probabilities are conditioned on this fact.
    nothing : probability that no item that passes the filter is a true match.
    known : factor by which all probabilities are multiplied to condition them on this fact; 1 if
        the client does not know the fact.
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
        """Compute the probabilities; ``allowed`` (g, n) masks the items that pass the filter."""
        fitted = found.probabilities(calibration, 0.0)
        moved = promises.shift != 0
        expected = found.probabilities(calibration, promises.shift) if moved else fitted
        final = calibration.feedback.of(expected)
        total = float(np.add.reduce(final))
        if total > 1:  # each label is corrected separately, so the sum can exceed 1
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
        """Return the likeliest parent (L,) at each level, and its probability (L,).

        The probabilities are corrected by feedback, and multiplied by `known`.

        Parameters
        ----------
        parents : (g, L) parents of the labels in the result list. Labels outside the list are left
            out, as in the calibration.
        allowed : (g, n) mask of each label's items within the filter; None without a filter.
        """
        n = len(parents)
        expected = self.expected[:n]
        if allowed is not None:
            expected = np.where(allowed[:n].any(axis=1), expected, 0.0)
        places, sums = likeliest_parents(parents, expected)
        return places, np.minimum(calibration.feedback.of(sums) * self.known, 1.0)
