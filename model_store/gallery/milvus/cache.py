"""Caches recently found items by row; the cache stays valid, because rows never change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping

from model_store.gallery.milvus.entities import Entity

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
