"""The interface of a vector database, and a function that searches and decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from model_store.decision import Terms
from model_store.retriever import Retriever
from model_store.search import N_CANDIDATES
from model_store.vector_queries import (
    ListDecision,
    NeighbourList,
    VectorQuery,
    cosines_of,
    decide_list,
    predictive_of,
)

Direction = NDArray[np.float32]


class Store(Protocol):
    """A vector database with the gallery's vectors; each result is sorted by descending cosine."""

    def nearest(self, direction: Direction, n: int) -> NeighbourList:
        """Return the ``n`` items nearest to a unit vector (D,); all items if there are fewer."""


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The neighbours that a store has found, and the decision on these neighbours."""

    neighbours: NeighbourList
    decided: ListDecision


def search_and_decide(
    retriever: Retriever, store: Store, query: VectorQuery, terms: Terms | None = None
) -> StoreAnswer:
    """Find as many neighbours as the calibration needs in a store, and decide on these neighbours.

    Parameters
    ----------
    retriever : retriever of the bundle whose calibration is used.
    terms : options of the decision; None for the calibration's defaults.

    Raises
    ------
    InvalidVector : the store finds too few items. `decide_list` lists the other reasons.
    """
    calibration = retriever.calibration
    n = N_CANDIDATES if calibration is None else calibration.n_candidates
    neighbours = store.nearest(predictive_of(retriever, query).direction, n)
    terms = terms or Terms(retriever.alpha, stale=retriever.stale)
    return StoreAnswer(neighbours, decide_list(retriever, query, neighbours, terms))


def by_cosine(
    direction: Direction,
    ids: Sequence[str],
    labels: Sequence[str | None],
    vectors: Sequence[Sequence[float]] | NDArray[np.float32],
) -> NeighbourList:
    """Sort items by cosine, nearest first.

    Use this function if the store does not sort by cosine.
    """
    found = np.asarray(vectors, np.float64).reshape(len(ids), len(direction))
    cosines = np.nan_to_num(cosines_of(found, direction))
    order = np.argsort(-cosines, kind="stable").tolist()
    return NeighbourList(
        [ids[place] for place in order],
        [labels[place] for place in order],
        similarities=cosines[order],
    )


def label_of(value: object) -> str | None:
    """Convert a store's label to a text or None."""
    return None if value is None else str(value)
