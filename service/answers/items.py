"""The items of a gallery."""

from __future__ import annotations

from urllib.parse import quote

from model_store.gallery import Item
from service import schemas


def item_detail(gallery: str, item: Item) -> schemas.ItemDetail:
    """One item."""
    return schemas.ItemDetail(
        id=item.id,
        label=item.label,
        metadata=dict(item.metadata),
        thumbnail_url=thumbnail_url(gallery, item.id),
    )


def thumbnail_url(gallery: str, item_id: str) -> str:
    """Where the picture of an item is."""
    return f"/v1/galleries/{quote(gallery)}/items/{quote(item_id)}/thumbnail"
