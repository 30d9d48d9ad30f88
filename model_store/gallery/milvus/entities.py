"""Converts items to Milvus entities, and entities to items."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DatasetError
from model_store.gallery.entities import Entity
from model_store.gallery.filters.sql import metadata_json
from model_store.gallery.milvus.collection import MOST_FACTS, TEXT_BYTES
from model_store.gallery.milvus.filter import facts
from model_store.gallery.protocol import Item, NewItem
from model_store.sphere import unit_direction

ENTITY_FIELDS = ["id", "label", "labelled", "direction", "dispersion", "metadata"]
"""The fields of an `Entity`."""

_INTEGERS = range(-(2**63), 2**64)
"""Integers that JSON in Milvus stores exactly."""


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
