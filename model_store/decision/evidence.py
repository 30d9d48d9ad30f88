"""The outcome of each calibration query, and the parents of labels.

All guarantees are computed from these arrays. A label can have parents at several levels: for
example the genus of a species, or the assembly of a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from model_store.messages import Absence, Order
from model_store.table import SHARED, Table

NO_PARENT = -1


@dataclass(frozen=True)
class Hierarchy:
    """The parents of labels, at L levels from the finest to the coarsest.

    Attributes
    ----------
    levels : L names of levels.
    parents : names of the parents at each level.
    labels : C labels with known parents; the gallery need not contain them.
    above : (C, L) index of each label's parent in ``parents`` of that level; `NO_PARENT` if the
        label has no parent there.
    """

    levels: Sequence[str]
    parents: Sequence[Sequence[str]]
    labels: Sequence[str]
    above: NDArray[np.int32]

    def __post_init__(self) -> None:
        wanted = len(self.labels), len(self.levels)
        if self.above.shape != wanted or len(self.parents) != len(self.levels):
            raise ValueError(f"{self.above.shape=} and {len(self.parents)=}, wanted {wanted}")

    @classmethod
    def of(cls, levels: Sequence[str], of_label: Mapping[str, Sequence[str | None]]) -> Hierarchy:
        """Return the hierarchy, given each label's parents at every level."""
        columns = list(zip(*of_label.values(), strict=True)) or [()] * len(levels)
        parents = [sorted({name for name in column if name is not None}) for column in columns]
        above = np.full((len(of_label), len(levels)), NO_PARENT, dtype=np.int32)
        for level, (names, column) in enumerate(zip(parents, columns, strict=True)):
            place_of = {name: place for place, name in enumerate(names)}
            above[:, level] = [NO_PARENT if name is None else place_of[name] for name in column]
        return cls(list(levels), parents, list(of_label), above)

    def of_labels(self, labels: Sequence[str | None]) -> NDArray[np.int32]:
        """Return the indexes (n, L) of the parents of n labels; `NO_PARENT` for unknown labels."""
        rows = [self._row_of.get(label, len(self.labels)) for label in labels]
        found: NDArray[np.int32] = self._with_unknown[np.array(rows, dtype=np.int64)]
        return found

    @cached_property
    def _row_of(self) -> Mapping[str | None, int]:
        return {label: row for row, label in enumerate(self.labels)}

    @cached_property
    def _with_unknown(self) -> NDArray[np.int32]:
        """``above`` with one more row at the end, for unknown labels."""
        unknown = np.full((1, len(self.levels)), NO_PARENT, dtype=np.int32)
        return np.concatenate([self.above, unknown])


def likeliest_parents(
    parents: NDArray[np.int32], probabilities: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the most probable parent at each level, with the summed probability of its labels.

    Parameters
    ----------
    parents : (g, L) parents of the labels, see `Hierarchy.above`.
    probabilities : (g,) probabilities of the labels.

    Returns
    -------
    places : (L,) indexes of the parents; `NO_PARENT` if no label has a parent at that level.
    sums : (L,) probabilities; 0 without a parent.
    """
    n_levels = parents.shape[1]
    places, sums = np.full(n_levels, NO_PARENT, dtype=np.int32), np.zeros(n_levels)
    for level in range(n_levels):
        known = parents[:, level] >= 0
        if known.any():
            of_parent = np.bincount(parents[known, level], probabilities[known])
            places[level] = of_parent.argmax()
            sums[level] = of_parent.max()
    return places, sums


SIZE_CLASSES = ("one", "few", "many")
"""Size classes of labels, by the number of items in the gallery: 1, 2 to 5, more than 5."""

_FEW = 5

Floats = NDArray[np.float64]


def size_classes(counts: NDArray[np.integer[Any]]) -> NDArray[np.int8]:
    """Return indexes (C,) of `SIZE_CLASSES` for labels with ``counts`` (C,) items."""
    return ((counts > 1).astype(np.int8) + (counts > _FEW)).astype(np.int8)


@dataclass(frozen=True)
class LevelEvidence(Table):
    """The outcomes of N calibration queries at the L levels of parents, see `Hierarchy`.

    Attributes
    ----------
    probabilities : (N, L) probability of the likeliest parent, for the share of absent queries that
        was used in the fit.
    correct : (N, L) whether the likeliest parent is a parent of the query's true label. The true
        label need not be in the gallery.
    """

    probabilities: Floats
    correct: NDArray[np.bool_]


@dataclass(frozen=True)
class Evidence(Table):
    """The outcomes of N calibration queries.

    The models that predict a query were not fitted to this query.

    Attributes
    ----------
    first_probabilities : (N,) match probability of the first item, for the share of absent queries
        that was used in the fit.
    no_match_probabilities : (N,) 1 − Σ of the match probabilities of all labels found.
    correct : (N,) whether the first item is a true match.
    absent : (N,) whether the gallery holds no true match.
    first_classes : (N,) size class of the first item's label.
    likeliest_probabilities : (N,) match probability of the likeliest item: the nearest item of the
        most probable label. If a list is ordered by probability, this item is the first item.
    likeliest_correct : (N,) whether the likeliest item is a true match.
    likeliest_classes : (N,) size class of the likeliest item's label.
    true_classes : (N,) size class of the query's own label; −1 for absent queries.
    critical : (N,) largest threshold with which the query's result set contains a true match. The
        value is ∞ if the likeliest label is right, and −1 if no candidate is right or the query is
        absent.
    clusters : (N,) cluster of each query. Queries of one cluster are not independent: they are
        copies, photographs of one object, or absent queries of one label.
    sources : (N,) index of the query's source in ``source_names``.
    source_names : names of all sources; one empty name if no source was given.
    absence : kind of the absent queries.
    rivals : correction factor of the false-match rate. An absent query in the calibration may be
        compared with fewer wrong labels than an absent query in service. The factor is the number
        of wrong labels in service, divided by the number in the calibration. With n labels in the
        gallery, the factor is n / (n − 1) if one label was hidden from each absent query. If the
        absent queries were compared with the gallery before m of the n labels were added, the
        factor is n / (n − m). Otherwise, the factor is 1.
    levels : outcomes at the levels of parents; None if labels have no parents.
    outlier_p_values : (N,) p-value of the outlier score among ordinary queries; None for
        calibrations before release 0.3.
    lone_share : if the queries are items, the share of labelled images that are the only image of
        their label. Such an image cannot be a query with a match, but served queries may show it.
        Bounds therefore count the same share of served queries as absent queries. Otherwise None.
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
    source_names: Sequence[str] = field(metadata=SHARED)
    absence: Absence = field(metadata=SHARED)
    rivals: float = field(metadata=SHARED)
    levels: LevelEvidence | None = None
    outlier_p_values: Floats | None = None
    lone_share: float | None = field(default=None, metadata=SHARED)

    def __post_init__(self) -> None:
        lengths = {len(column) for _, column in self._columns() if column is not None}
        if len(lengths) > 1:
            raise ValueError(f"evidence of {sorted(lengths)} queries; wanted arrays of one length")
        if self.absence not in get_args(Absence):
            raise ValueError(f"{self.absence=}; wanted one of {get_args(Absence)}")

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """(N,) mask with one query, drawn at random, for each cluster of queries with a match."""
        order = np.random.default_rng(0).permutation(len(self))
        order = order[~self.absent[order]]
        _, first = np.unique(self.clusters[order], return_index=True)
        counted = np.zeros(len(self), dtype=np.bool_)
        counted[order[first]] = True
        return counted

    def ordinary(self, alpha: float) -> NDArray[np.bool_]:
        """Return a mask (N,) of the queries that are not flagged at false-alarm rate ``alpha``."""
        if self.outlier_p_values is None:
            return np.ones(len(self), dtype=np.bool_)
        return self.outlier_p_values > alpha

    def of_level(self, level: int) -> Evidence:
        """Return the evidence for answers that give the likeliest parent at a level, not an item.

        An absent query is left out if its likeliest parent is right. Such a query counts neither as
        an error nor as an answer.

        Raises
        ------
        ValueError : the evidence has no levels.
        """
        if self.levels is None:
            raise ValueError("the evidence has no levels of parents")
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
        """Return the evidence for lists in ``order``; the first item depends on the order."""
        if order == "similarity":
            return self
        return replace(
            self,
            first_probabilities=self.likeliest_probabilities,
            correct=self.likeliest_correct,
            first_classes=self.likeliest_classes,
        )

    def of_source(self, name: str) -> Evidence:
        """Return the evidence of the queries from the known source ``name``."""
        return self.at(self.sources == list(self.source_names).index(name))
