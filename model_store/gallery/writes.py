"""What can be done to a live gallery, and what its log says was done."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.protocol import NewItem


@dataclass(frozen=True, slots=True)
class Vector:
    """An item's embedding, before normalisation.

    Attributes
    ----------
    mean, variance : (D,) float32.
    """

    mean: NDArray[np.float32]
    variance: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Upsert:
    """An item that is to be there, in place of one of the same id if need be."""

    item: NewItem
    vector: Vector

    @property
    def id(self) -> str:
        """Of the item."""
        return self.item.id


@dataclass(frozen=True, slots=True)
class Delete:
    """An item that is to be there no more."""

    id: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a search needs to know of one line of the log; without ``vector``, a deletion."""

    sequence: int
    id: str
    label: str | None
    vector: Vector | None


@dataclass(frozen=True, slots=True)
class Retry:
    """What makes a request one that may be sent again.

    Attributes
    ----------
    key : of the request, whoever sends it made unique.
    request : digest of what is asked; the same key with another is refused.
    """

    key: str
    request: str
