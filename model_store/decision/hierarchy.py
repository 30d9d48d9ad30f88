"""Labels above labels: genus and family of a species, the assembly of a part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

NO_PARENT = -1


@dataclass(frozen=True)
class Hierarchy:
    """The parents of labels, at L levels from the finest to the coarsest.

    Attributes
    ----------
    levels : L names of levels.
    parents : the labels of each level.
    labels : C labels whose parents are known, whether or not the gallery holds them.
    above : (C, L) place of each label's parent in ``parents`` of that level; `NO_PARENT` for none.
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
        """Return the hierarchy of labels, given the parents of each at every level."""
        columns = list(zip(*of_label.values(), strict=True)) or [()] * len(levels)
        parents = [sorted({name for name in column if name is not None}) for column in columns]
        above = np.full((len(of_label), len(levels)), NO_PARENT, dtype=np.int32)
        for level, (names, column) in enumerate(zip(parents, columns, strict=True)):
            place_of = {name: place for place, name in enumerate(names)}
            above[:, level] = [NO_PARENT if name is None else place_of[name] for name in column]
        return cls(list(levels), parents, list(of_label), above)

    def of_labels(self, labels: Sequence[str | None]) -> NDArray[np.int32]:
        """Return the places (n, L) of the parents of n labels; `NO_PARENT` of unknown ones."""
        rows = [self._row_of.get(label, len(self.labels)) for label in labels]
        found: NDArray[np.int32] = self._with_unknown[np.array(rows, dtype=np.int64)]
        return found

    @cached_property
    def _row_of(self) -> Mapping[str | None, int]:
        return {label: row for row, label in enumerate(self.labels)}

    @cached_property
    def _with_unknown(self) -> NDArray[np.int32]:
        """The rows of all labels, and at the end that of unknown ones."""
        unknown = np.full((1, len(self.levels)), NO_PARENT, dtype=np.int32)
        return np.concatenate([self.above, unknown])


@dataclass(frozen=True, slots=True)
class RollUp:
    """The finest label above labels that is sure enough, where no label is.

    Attributes
    ----------
    level : its name.
    label : of that level.
    probability : that the gallery holds a true match whose label is below it.
    """

    level: str
    label: str
    probability: float


def likeliest_parents(
    parents: NDArray[np.int32], probabilities: NDArray[np.float64]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the likeliest parent at each level, and its probability: the sum of its labels'.

    Parameters
    ----------
    parents : (g, L) of the labels, see `Hierarchy.above`.
    probabilities : (g,) of the labels.

    Returns
    -------
    places : (L,), `NO_PARENT` where no label has a parent of that level.
    sums : (L,), 0 there.
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
