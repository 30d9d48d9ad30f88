"""Result sets: the fewest items that contain a true match with a stated probability."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.decision.evidence import SIZE_CLASSES, Evidence
from model_store.decision.operating import errors_allowed
from model_store.messages import Message, joined, message

MOST_UNPROMISED = 32
"""Maximum number of labels in a set without a guarantee; a longer list would be useless."""


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ResultSetChoice:
    """Items that contain a true match with a stated probability.

    If one item of a label is a true match, all items of this label are true matches. So the set
    contains only the nearest item of each likely label.

    Attributes
    ----------
    places : (m,) ascending indexes in the result list; empty only if no item may be listed.
    coverage : the requested coverage.
    promised_for : size classes of labels for which the coverage is guaranteed.
    shortfall : None if the coverage is guaranteed for every class of the gallery; else the reasons,
        in sentences.
    """

    places: NDArray[np.int64]
    coverage: float
    promised_for: tuple[str, ...]
    shortfall: str | None


@dataclass(frozen=True, slots=True)
class _ClassRule:
    """The rule for one size class, from the calibration queries whose true label has this class.

    Attributes
    ----------
    critical : (n,) values of `Evidence.critical` in ascending order, from one query of each object.
    """

    critical: Floats

    def threshold(self, coverage: float, delta: float) -> float | None:
        """Return the largest threshold that guarantees ``coverage``; None if there is none."""
        allowed = errors_allowed(len(self.critical), coverage, delta)
        if allowed < 0 or self.critical[allowed] < 0:
            return None
        return float(self.critical[allowed])


@dataclass(frozen=True)
class _Thresholds:
    """The thresholds for one coverage; None if no size class has a guarantee."""

    thresholds: Floats | None
    promised_for: tuple[str, ...]
    shortfall: Message | None


class ResultSetRule:
    """The rule for result sets of any coverage (Angelopoulos et al. 2021, Learn then Test).

    A set contains the likeliest label, and every label whose match probability reaches the
    threshold of its size class. Among all rules with the same coverage of each class, this rule
    gives the smallest sets on average (Sadinle et al. 2019; Vovk 2012, Conditional validity). A
    larger threshold gives smaller sets and more errors. So thresholds are tested in ascending
    order, each with the exact binomial test at level δ, until a test fails. No correction for the
    number of tests is needed.

    The guarantee holds for one coverage and one size class, both chosen in advance. The guarantee
    is for new queries that are exchangeable with the calibration queries and have a true label of
    this size class. With probability 1 − δ over calibrations, at least the share ``coverage`` of
    the new queries get a set that contains a true match. The test is exact for the probabilities of
    five cross-fits, but served probabilities come from a fit to all queries. The difference between
    these probabilities shrinks with the number of queries.

    Parameters
    ----------
    evidence : evidence of the calibration queries.
    n_labels : (3,) number of the gallery's labels in each of `SIZE_CLASSES`.
    delta : δ.
    """

    def __init__(self, evidence: Evidence, n_labels: NDArray[np.int64], delta: float) -> None:
        self._rules = []
        for size_class in range(len(SIZE_CLASSES)):
            rows = evidence.counted & (evidence.true_classes == size_class)
            self._rules.append(_ClassRule(np.sort(evidence.critical[rows])))
        self._n_labels = n_labels
        self._delta = delta
        self._known: dict[float, _Thresholds] = {}

    def promised_for(self, coverage: float) -> tuple[str, ...]:
        """Return the size classes for which ``coverage`` is guaranteed."""
        return self._at(coverage).promised_for

    def shortfall(self, coverage: float) -> Message | None:
        """Return why ``coverage`` is not guaranteed for every label; None if it is guaranteed."""
        return self._at(coverage).shortfall

    def choose(
        self,
        places: NDArray[np.int64],
        probabilities: Floats,
        classes: NDArray[np.int8],
        coverage: float,
    ) -> ResultSetChoice:
        """Choose the result set of one query.

        Parameters
        ----------
        places : (g,) ascending index of the nearest item of each label.
        probabilities : (g,) match probabilities of the labels.
        classes : (g,) size classes of the labels.
        coverage : in (0, 1).
        """
        found = self._at(coverage)
        if found.thresholds is None:
            likeliest = np.sort(np.argsort(-probabilities, kind="stable")[:MOST_UNPROMISED])
            return ResultSetChoice(places[likeliest], coverage, (), found.shortfall)
        chosen = probabilities >= found.thresholds[classes]
        chosen[probabilities.argmax()] = True
        return ResultSetChoice(places[chosen], coverage, found.promised_for, found.shortfall)

    def _at(self, coverage: float) -> _Thresholds:
        known = self._known.get(coverage)
        if known is None:
            if len(self._known) > 1000:  # clients can request any coverage
                self._known.clear()
            known = self._known[coverage] = self._compute(coverage)
        return known

    def _compute(self, coverage: float) -> _Thresholds:
        """Compute the threshold of each class.

        A class without a guarantee gets the lowest threshold of the other classes.
        """
        found = [rule.threshold(coverage, self._delta) for rule in self._rules]
        promised = [value for value in found if value is not None]
        missing = [
            self._why_not(place, coverage)
            for place, value in enumerate(found)
            if value is None and self._n_labels[place]
        ]
        return _Thresholds(
            np.array([min(promised) if value is None else value for value in found])
            if promised
            else None,
            tuple(
                name
                for name, value, n in zip(SIZE_CLASSES, found, self._n_labels, strict=True)
                if value is not None and n
            ),
            joined(missing),
        )

    def _why_not(self, size_class: int, coverage: float) -> Message:
        rule, n_labels = self._rules[size_class], int(self._n_labels[size_class])
        queries: str = ""
        n_all = int(self._n_labels.sum())
        if n_labels < n_all:
            size = message(f"size_{SIZE_CLASSES[size_class]}")
            queries = message("labels_of_size", size=size, n_labels=n_labels, n_all=n_all)
        needed = math.ceil(math.log(self._delta) / math.log(coverage))
        if len(rule.critical) < needed:
            return message(
                "coverage_needs_queries",
                coverage=coverage,
                n_needed=needed,
                queries=queries,
                n_effective=len(rule.critical),
            )
        reached = round(float((rule.critical >= 0).mean()), 3)
        return message("coverage_out_of_reach", queries=queries, reached=reached, coverage=coverage)
