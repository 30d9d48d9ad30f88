"""Parents of labels, for example the genus of a species, or the assembly of a part."""

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
