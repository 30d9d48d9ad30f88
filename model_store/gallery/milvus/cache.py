"""Recently found items of a collection; the content of a row never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping

from model_store.gallery.milvus.entities import Entity

REMEMBERED_ITEMS = 16_384
"""With their directions: about 30 MB of 128 dimensions."""

MOSTLY_KNOWN = 0.6
"""Share of rows remembered from which a search asks for rows alone, and reads the others in a
second request: about where both ways take as long."""

_N_AVERAGED = 8
"""Searches."""


class EntityCache:
    """Items by their row, the latest `REMEMBERED_ITEMS`; safe to share by threads."""

    def __init__(self) -> None:
        self._entities: OrderedDict[int, Entity] = OrderedDict()
        self._lock = threading.Lock()
        self._known_share = 0.0

    @property
    def mostly_knows(self) -> bool:
        """True where most rows that the last searches found were remembered."""
        return self._known_share >= MOSTLY_KNOWN

    def observe(self, rows: Collection[int]) -> None:
        """Count how many of the rows that a search has found are remembered."""
        if not rows:
            return
        with self._lock:
            share = sum(row in self._entities for row in rows) / len(rows)
            self._known_share += (share - self._known_share) / _N_AVERAGED

    def known(self, rows: Iterable[int]) -> dict[int, Entity]:
        """Those of ``rows`` that are remembered."""
        with self._lock:
            return {row: self._entities[row] for row in rows if row in self._entities}

    def remember(self, entities: Mapping[int, Entity]) -> None:
        """Add an item, and drop the least recently found one."""
        with self._lock:
            for row, entity in entities.items():
                self._entities[row] = entity
                self._entities.move_to_end(row)
            while len(self._entities) > REMEMBERED_ITEMS:
                self._entities.popitem(last=False)
