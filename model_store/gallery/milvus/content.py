"""Converts a change to text. The log keeps the text until Milvus has stored the change."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

import numpy as np

from model_store.errors import LogDamaged
from model_store.gallery.filters.sql import metadata_json
from model_store.gallery.protocol import NewItem, Thumbnail
from model_store.gallery.writable import Upsert, Vector


def write_content(sequence: int, write: Upsert) -> str:
    """Return the text of the change with the number ``sequence``."""
    item, vector = write.item, write.vector
    values: list[Any] = [
        item.id,
        item.label,
        metadata_json(item.metadata),
        item.thumbnail.media_type,
        _packed(item.thumbnail.data),
        _packed(vector.mean.astype("<f4").tobytes()),
        _packed(vector.variance.astype("<f4").tobytes()),
    ]
    text = json.dumps([sequence, *values])
    return _digest(text) + text


def read_content(sequence: int, content: str | None) -> Upsert:
    """Parse the text of `write_content`.

    Raises
    ------
    LogDamaged : the text differs from its checksum, or belongs to another change.
    """
    digest, text = (content or "")[:32], (content or "")[32:]
    if digest != _digest(text) or json.loads(text)[0] != sequence:
        raise LogDamaged(
            f"The change {sequence} in the log of the gallery is damaged. Restore the log from a "
            "backup."
        )
    _, item_id, label, metadata, media_type, data, *numbers = json.loads(text)
    thumbnail = Thumbnail(base64.b64decode(data), media_type)
    mean, variance = (
        np.frombuffer(base64.b64decode(part), "<f4").astype(np.float32) for part in numbers
    )
    return Upsert(NewItem(item_id, label, json.loads(metadata), thumbnail), Vector(mean, variance))


def _packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
