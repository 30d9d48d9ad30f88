"""The calibration queries, and the outcome of each: every promise is computed from these arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from model_store.verdicts import Absence, Order

SIZE_CLASSES = ("one", "few", "many")
"""Labels by their number of items in the gallery: 1, 2 to 5, more."""

_FEW = 5

Floats = NDArray[np.float64]


def size_classes(counts: NDArray[np.integer[Any]]) -> NDArray[np.int8]:
    """Return the place (C,) in `SIZE_CLASSES` of labels with ``counts`` (C,) items."""
    return ((counts > 1).astype(np.int8) + (counts > _FEW)).astype(np.int8)


@dataclass(frozen=True)
class LevelEvidence:
    """The outcomes of N calibration queries at the L levels above their labels, see `Hierarchy`.

    Attributes
    ----------
    probabilities : (N, L) of the likeliest parent, at the share of absent queries of the fit.
    correct : (N, L) whether it is a parent of what the query shows, in the gallery or not.
    """

    probabilities: Floats
    correct: NDArray[np.bool_]

    def at(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> LevelEvidence:
        """Return the outcome of the queries ``chosen``, as in `Evidence.at`."""
        return LevelEvidence(self.probabilities[chosen], self.correct[chosen])


@dataclass(frozen=True)
class Evidence:
    """N calibration queries, each judged by fits that have not seen it.

    Attributes
    ----------
    first_probabilities : (N,) match probability of the first item, at the share of absent queries
        that the model was fitted with.
    no_match_probabilities : (N,) 1 − Σ of the match probabilities of all labels found.
    correct : (N,) whether the first item is a true match.
    absent : (N,) whether the gallery holds no true match.
    first_classes : (N,) size class of the first item's label.
    likeliest_probabilities, likeliest_correct, likeliest_classes : (N,) the same of the label of
        the highest match probability, whose nearest item is the first where the list is ordered by
        probability.
    true_classes : (N,) size class of the query's own label; −1 of absent queries.
    critical : (N,) largest threshold whose result set holds a true match: ∞ where the likeliest
        label is right, −1 where no candidate is, and of absent queries.
    clusters : (N,) queries of one cluster are no independent evidence: copies, photographs of one
        object, absent queries of one label.
    sources : (N,) place in ``source_names`` of where the query comes from.
    source_names : of all sources; one empty name where none was given.
    absence : what the absent queries are.
    rivals : how many times as many labels a served absent query may be taken for as these could
        be: n / (n − 1) where each has one of the gallery's n labels hidden from it; n / (n − m)
        where they were judged before m of them came; else 1.
    levels : of the levels above labels; None where labels have no parents.
    outlier_p_values : (N,) of the outlier score among those of ordinary queries; None of
        calibrations before release 0.3.
    """

    first_probabilities: Floats
    no_match_probabilities: Floats
    correct: NDArray[np.bool_]
    absent: NDArray[np.bool_]
    first_classes: NDArray[np.int8]
    likeliest_probabilities: Floats
    likeliest_correct: NDArray[np.bool_]
    likeliest_classes: NDArray[np.int8]
    true_classes: NDArray[np.int8]
    critical: Floats
    clusters: NDArray[np.int64]
    sources: NDArray[np.int16]
    source_names: Sequence[str]
    absence: Absence
    rivals: float
    levels: LevelEvidence | None = None
    outlier_p_values: Floats | None = None

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in ARRAYS}
        if self.outlier_p_values is not None:
            lengths.add(len(self.outlier_p_values))
        if len(lengths) > 1:
            raise ValueError(f"evidence of {sorted(lengths)} queries; wanted arrays of one length")
        if self.absence not in get_args(Absence):
            raise ValueError(f"{self.absence=}; wanted one of {get_args(Absence)}")

    def __len__(self) -> int:
        return len(self.correct)

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """(N,) one query, drawn at random, of each cluster of queries that have a match."""
        order = np.random.default_rng(0).permutation(len(self))
        order = order[~self.absent[order]]
        _, first = np.unique(self.clusters[order], return_index=True)
        counted = np.zeros(len(self), dtype=np.bool_)
        counted[order[first]] = True
        return counted

    def ordinary(self, alpha: float) -> NDArray[np.bool_]:
        """Return which queries (N,) are not flagged out of distribution at a rate ``alpha``."""
        if self.outlier_p_values is None:
            return np.ones(len(self), dtype=np.bool_)
        return self.outlier_p_values > alpha

    def at(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Evidence:
        """Return the evidence of the queries ``chosen``: a mask (N,), or their places (n,)."""
        return replace(
            self,
            levels=None if self.levels is None else self.levels.at(chosen),
            outlier_p_values=None
            if self.outlier_p_values is None
            else self.outlier_p_values[chosen],
            **{name: getattr(self, name)[chosen] for name in ARRAYS},
        )

    def of_level(self, level: int) -> Evidence:
        """Return the evidence of the likeliest parents at a level, as of first items.

        Where a query without a match in the gallery has that parent, the answer is right, and is
        left out of account: it is neither an error nor among the answers that errors are shares of.

        Raises
        ------
        ValueError : there are no levels.
        """
        if self.levels is None:
            raise ValueError("no levels are known of these queries")
        correct = self.levels.correct[:, level]
        return replace(
            self,
            first_probabilities=np.where(
                self.absent & correct, 0.0, self.levels.probabilities[:, level]
            ),
            correct=correct & ~self.absent,
            first_classes=self.likeliest_classes,
        )

    def of_order(self, order: Order) -> Evidence:
        """Return the evidence of lists in ``order``, as the outcome of their first items."""
        if order == "similarity":
            return self
        return replace(
            self,
            first_probabilities=self.likeliest_probabilities,
            correct=self.likeliest_correct,
            first_classes=self.likeliest_classes,
        )

    def of_source(self, name: str) -> Evidence:
        """Return the evidence of the queries that come from ``name``, a known source."""
        return self.at(self.sources == list(self.source_names).index(name))


ARRAYS = tuple(
    field.name
    for field in fields(Evidence)
    if field.name not in {"source_names", "absence", "rivals", "levels", "outlier_p_values"}
)
