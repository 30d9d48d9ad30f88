"""The rows of the table ``items``: what PostgreSQL stores of an item."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.errors import DatasetError
from model_store.gallery.filters.sql import metadata_json
from model_store.gallery.protocol import NewItem
from model_store.sphere import unit_direction

TYPES = {
    "row": "int8",
    "id": "text",
    "label": "text",
    "metadata": "jsonb",
    "direction": "vector",
    "norm": "float4",
    "total_variance": "float4",
    "variance": "vector",
    "features": "bytea",
    "thumbnail": "bytea",
    "media_type": "text",
    "preview": "bytea",
    "born": "int8",
}
"""Column → type. `total_variance` is Σ_d v_d / ‖m‖²; `variance` is not divided by the norm."""

COLUMNS = ", ".join(TYPES)
PLACES = ", ".join(f"%s::{kind}" for kind in TYPES.values())


def values_of(
    row: int,
    item: NewItem,
    mean: NDArray[np.float32],
    variance: NDArray[np.float32],
    born: int = 0,
    features: NDArray[np.float32] | None = None,
) -> list[Any]:
    """Return the values of `COLUMNS` for an item with mean (D,) and variance (D,).

    Raises
    ------
    DatasetError : a text has a null character or an unpaired surrogate.
    """
    metadata = json.loads(metadata_json(item.metadata))
    texts = [item.id, item.label or "", *_texts(metadata)]
    if not all(map(_is_storable, texts)):
        raise DatasetError(
            f"The item {item.id[:80]!r} has a text with a null character or an unpaired surrogate, "
            "which PostgreSQL cannot store. Remove the character, or store the gallery in files."
        )
    norms = np.linalg.norm(mean[None], axis=1)  # as a batch, for the same rounding
    return [
        row,
        item.id,
        item.label,
        import_module("psycopg.types.json").Jsonb(metadata),
        unit_direction(mean[None])[0],
        float(norms[0]),
        float((variance[None].sum(-1) / norms**2)[0]),
        np.asarray(variance, dtype=np.float32),
        None if features is None else features.astype("<f4").tobytes(),
        item.thumbnail.data,
        item.thumbnail.media_type,
        item.preview,
        born,
    ]


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - whatever JSON holds
    """Yield all texts and keys in parsed JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _texts(part)


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
