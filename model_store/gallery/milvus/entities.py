"""Converts items to Milvus entities, and entities to items; caches recently read entities."""

from __future__ import annotations

import base64
import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DatasetError
from model_store.gallery.filters.sql import metadata_json
from model_store.gallery.milvus.collection import MOST_FACTS, TEXT_BYTES
from model_store.gallery.milvus.filter import facts
from model_store.gallery.protocol import Item, NewItem
from model_store.sphere import unit_direction

ENTITY_FIELDS = ["id", "label", "labelled", "direction", "dispersion", "metadata"]
"""The fields of an `Entity`."""

_INTEGERS = range(-(2**63), 2**64)
"""Integers that JSON in Milvus stores exactly."""


@dataclass(frozen=True, slots=True)
class Entity:
    """An item from Milvus, with its direction and total variance.

    Attributes
    ----------
    direction : (D,) float32, unit vector.
    total_variance : Σ_d v_d / ‖m‖².
    """

    item: Item
    direction: NDArray[np.float32]
    total_variance: float


def read_entity(found: Mapping[str, Any]) -> Entity:
    """Create an entity from the values of `ENTITY_FIELDS`."""
    label = found["label"] if found["labelled"] else None
    item = Item(found["id"], label, found["metadata"])
    direction = np.array(found["direction"], dtype=np.float32)
    return Entity(item, direction, found["dispersion"])


def rows_of(hits: Any) -> list[int]:  # noqa: ANN401 - pymilvus has no types
    """Return the rows of a search's hits, nearest first, without decoding other fields."""
    return [hits.get_raw_item(place)["entity"]["row"] for place in range(len(hits))]


def read_hits(hits: Any) -> dict[int, Entity]:  # noqa: ANN401 - pymilvus has no types
    """Create entities from a search's hits; the hits must contain `ENTITY_FIELDS`.

    Directions and metadata are read column by column. pymilvus reads cell by cell, which would take
    three times as long as the rest of this function.
    """
    if not len(hits):
        return {}
    columns = {column.field_name: column for column in hits.lazy_field_data}
    here = slice(hits.start, hits.start + len(hits))
    vectors = columns["direction"].vectors
    directions = np.array(vectors.float_vector.data, dtype=np.float32).reshape(-1, vectors.dim)
    metadata = columns["metadata"].scalars.json_data.data[here]
    entities = {}
    for place, (direction, text) in enumerate(zip(directions[here], metadata, strict=True)):
        found = hits.get_raw_item(place)["entity"]  # before 2.4, hit["id"] is the row
        whole = {**found, "direction": direction, "metadata": json.loads(text)}
        entities[found["row"]] = read_entity(whole)
    return entities


def write_entity(
    row: int,
    item: NewItem,
    mean: NDArray[np.float32],
    variance: NDArray[np.float32],
) -> dict[str, Any]:
    """Return the entity for ``row``: an item with the mean (D,) and variance (D,) of its embedding.

    Raises
    ------
    DatasetError : the item exceeds a limit of Milvus.
    """
    metadata = json.loads(metadata_json(item.metadata))
    thumbnail = base64.b64encode(item.thumbnail.data).decode()
    known = facts(item.id, item.label, metadata)
    _require_room(item, metadata, known, thumbnail)
    norms = np.linalg.norm(mean[None], axis=1)  # as a batch, for the same rounding
    return {
        "row": row,
        "id": item.id,
        "label": item.label or "",
        "labelled": item.label is not None,
        "direction": unit_direction(mean[None])[0],
        "variance": variance.tolist(),
        "norm": float(norms[0]),
        "dispersion": float((variance[None].sum(-1) / norms**2)[0]),
        "metadata": metadata,
        "facts": known,
        "thumbnail": thumbnail,
        "media_type": item.thumbnail.media_type,
    }


def _require_room(
    item: NewItem, metadata: Mapping[str, Any], known: list[str], thumbnail: str
) -> None:
    text = json.dumps(metadata, ensure_ascii=False)
    texts = [item.id, item.label or "", text, thumbnail]
    try:
        longest = max(len(one.encode()) for one in texts)
    except UnicodeEncodeError:
        raise _refusal(item, "an unpaired surrogate") from None
    if longest > TEXT_BYTES:
        raise _refusal(item, f"{longest:,} bytes of text, metadata or picture")
    if len(known) > MOST_FACTS:
        raise _refusal(item, f"{len(known):,} values for filters")
    if not _integers_fit(metadata):
        raise _refusal(item, "an integer of more than 64 bits")


def _refusal(item: NewItem, what: str) -> DatasetError:
    return DatasetError(
        f"The item {item.id[:80]!r} has {what}; Milvus takes at most {TEXT_BYTES:,} bytes, "
        f"{MOST_FACTS:,} values and integers of 64 bits. Shorten the item, or store the gallery "
        "in FAISS."
    )


def _integers_fit(value: Any) -> bool:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, dict):
        return all(map(_integers_fit, value.values()))
    if isinstance(value, list):
        return all(map(_integers_fit, value))
    return not isinstance(value, int) or value in _INTEGERS


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
