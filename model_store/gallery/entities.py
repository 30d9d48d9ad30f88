"""Items from a database, and what galleries in databases have in common."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import ItemNotFound
from model_store.gallery.files.gallery import similarities_of
from model_store.gallery.filters.selection import NO_FIELDS
from model_store.gallery.protocol import SIMILARITY_DECIMALS, Candidates, Item
from model_store.messages import IndexedBy, Plan


@dataclass(frozen=True, slots=True)
class Entity:
    """An item from a database, with its direction and total variance.

    Attributes
    ----------
    direction : (D,) float32, unit vector.
    total_variance : Σ_d v_d / ‖m‖².
    """

    item: Item
    direction: NDArray[np.float32]
    total_variance: float


REMEMBERED_ITEMS = 16_384
"""Maximum number of cached items. With 128 dimensions, these items take about 30 MB."""

MOSTLY_KNOWN = 0.6
"""A search sends two requests if the cache contained at least this share of the rows that recent
searches found. The first request returns only row numbers, and the second request reads the items
that are not cached. For a smaller share, a single request for rows and items is faster."""

_N_AVERAGED = 8
"""The share of cached rows is averaged over about this number of recent searches."""


class EntityCache:
    """An LRU cache that maps rows to at most `REMEMBERED_ITEMS` items; thread-safe."""

    def __init__(self) -> None:
        self._entities: OrderedDict[int, Entity] = OrderedDict()
        self._lock = threading.Lock()
        self._known_share = 0.0

    @property
    def mostly_knows(self) -> bool:
        """True if most rows found by the last searches were cached."""
        return self._known_share >= MOSTLY_KNOWN

    def observe(self, rows: Collection[int]) -> None:
        """Update the average share of cached rows; a search has found ``rows``."""
        if not rows:
            return
        with self._lock:
            share = sum(row in self._entities for row in rows) / len(rows)
            self._known_share += (share - self._known_share) / _N_AVERAGED

    def known(self, rows: Iterable[int]) -> dict[int, Entity]:
        """Return the cached items among ``rows``."""
        with self._lock:
            return {row: self._entities[row] for row in rows if row in self._entities}

    def remember(self, entities: Mapping[int, Entity]) -> None:
        """Add items, and drop the items that were found least recently."""
        with self._lock:
            for row, entity in entities.items():
                self._entities[row] = entity
                self._entities.move_to_end(row)
            while len(self._entities) > REMEMBERED_ITEMS:
                self._entities.popitem(last=False)


READ_AT_ONCE = 1_000
"""Maximum number of items in one request, because a database limits the size of a response."""


class EntityGallery(ABC):
    """A gallery that reads its items from a database, row by row.

    Attributes
    ----------
    dim : D, the dimension of an embedding.
    """

    dim: int
    _lately: EntityCache

    @property
    @abstractmethod
    def n_items(self) -> int:
        """The number of items."""

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """N, the number of rows; rows are numbered from 0 to N − 1."""

    @abstractmethod
    def _read(self, rows: list[int]) -> dict[int, Entity]:
        """Read the items that exist at ``rows`` from the database."""

    @abstractmethod
    def _read_variances(self, rows: list[int]) -> dict[int, tuple[Any, float]]:
        """Read variance (D,) and norm of the items that exist at ``rows`` from the database."""

    @abstractmethod
    def _code(self, label: str | None) -> int:
        """Return the code of a label; -1 for None."""

    def current(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the subset of ``rows`` (n,) that the state has; a replaced row may be left out."""
        return rows

    def directions(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the unit directions (..., D) of ``rows`` (...)."""
        values = np.empty((rows.size, self.dim), dtype=np.float32)
        for place, entity in enumerate(self._each(rows)):
            values[place] = entity.direction
        return values.reshape(*rows.shape, self.dim)

    def total_variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each total variance, divided by the item's squared norm: Σ_d v_d / ‖m‖², (...)."""
        values = [entity.total_variance for entity in self._each(rows)]
        return np.array(values, dtype=np.float32).reshape(rows.shape)

    def variances(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return each variance, divided by the item's squared norm: v / ‖m‖², (..., D)."""
        stored: dict[int, tuple[Any, float]] = {}
        for part in parts_of(np.unique(rows), READ_AT_ONCE):
            stored |= self._read_variances(part.tolist())
        self._require(rows.ravel(), stored)
        values = np.empty((rows.size, self.dim), dtype=np.float32)
        for place, row in enumerate(rows.ravel().tolist()):
            variance, norm = stored[row]
            values[place] = np.asarray(variance, dtype=np.float32) / np.float32(norm) ** 2
        return values.reshape(*rows.shape, self.dim)

    def label_codes(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the label codes of ``rows`` (...); -1 for an item without a label."""
        codes = [self._code(entity.item.label) for entity in self._each(rows)]
        return np.array(codes, dtype=np.int32).reshape(rows.shape)

    def items(self, rows: NDArray[np.int64]) -> list[Item]:
        """Return the items at ``rows`` (n,), in the order of ``rows``."""
        return [entity.item for entity in self._each(rows)]

    def _each(self, rows: NDArray[np.int64]) -> Iterator[Entity]:
        """Yield the items at ``rows``, in the order of ``rows``, or raise `ItemNotFound`."""
        for part in parts_of(rows.ravel(), READ_AT_ONCE):
            entities = self._entities(self.current(part))
            self._require(part, entities)
            yield from (entities[row] for row in part.tolist())

    @staticmethod
    def _require(rows: NDArray[np.int64], found: Container[int]) -> None:
        for row in rows.tolist():
            if row not in found:
                raise ItemNotFound(f"The item at row {row} is no longer in the gallery.")

    def _entities(self, rows: NDArray[np.int64]) -> dict[int, Entity]:
        """Return the items that exist at ``rows`` (n,), from the cache or from the database."""
        known = self._lately.known(rows.tolist())
        missing = [row for row in rows.tolist() if row not in known]
        if missing:
            read = self._read(missing)
            self._lately.remember(read)
            known |= read
        return known

    def _best(
        self,
        found: Iterable[NDArray[np.int64]],
        queries: NDArray[np.float32],
        n: int,
        plan: Plan,
    ) -> Candidates:
        """Return the ``n`` nearest of the rows that were ``found`` for each query."""
        ranked = [self._ranked(rows, query, n) for rows, query in zip(found, queries, strict=True)]
        n = min(len(rows) for rows, _ in ranked)  # fewer if a row was deleted after the search
        return Candidates(
            np.stack([rows[:n] for rows, _ in ranked]),
            np.stack([similarities[:n] for _, similarities in ranked]),
            plan,
        )

    def _ranked(
        self, rows: NDArray[np.int64], query: NDArray[np.float32], n: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the ``n`` rows nearest to ``query`` and their similarities, nearest first."""
        entities = list(self._entities(rows).items())
        if not entities:
            return np.empty(0, dtype=np.int64), np.empty(0)
        exact = similarities_of(np.stack([entity.direction for _, entity in entities]), query)
        similarities = np.round(exact, SIMILARITY_DECIMALS)
        order = sorted(
            range(len(entities)),
            key=lambda place: (-similarities[place], entities[place][1].item.id),
        )[:n]
        return np.array([entities[place][0] for place in order]), similarities[order]


class EntityRows(ABC):
    """The rows of a gallery in a database that pass a filter; implements `Allowed`.

    A search sends the filter to the database. Only `rows` and `mask` fetch all rows.
    """

    indexes: Mapping[str, IndexedBy] = NO_FIELDS
    """Empty, because the database does not report which index it uses."""

    def __init__(self, gallery: EntityGallery) -> None:
        self._n_items, self._n_rows = gallery.n_items, gallery.n_rows

    @property
    @abstractmethod
    def at_most(self) -> int:
        """The number of rows that pass the filter; may include recently replaced rows."""

    @abstractmethod
    def at(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (n,): True for each of ``rows`` (n,) that is allowed."""

    @abstractmethod
    def rows(self) -> NDArray[np.int64]:
        """Return all allowed rows, ascending."""

    @property
    def share(self) -> float:
        """The share of the gallery's items that pass the filter."""
        return min(self.at_most / max(self._n_items, 1), 1.0)

    def mask(self) -> NDArray[np.bool_]:
        """Return a read-only mask (N,) of the allowed rows."""
        mask = np.zeros(self._n_rows, dtype=bool)
        mask[self.rows()] = True
        mask.flags.writeable = False
        return mask


def parts_of(rows: NDArray[np.int64], n: int) -> list[NDArray[np.int64]]:
    """Split ``rows`` into parts of at most ``n`` rows."""
    return [rows[start : start + n] for start in range(0, len(rows), n)]
