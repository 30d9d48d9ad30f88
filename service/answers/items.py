"""The items of a gallery."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from model_store.gallery import Item
from service import schemas
from service.cursors import ItemsCursor, write
from service.engine import SearchEngine


def item_detail(gallery: str, item: Item) -> schemas.ItemDetail:
    """One item."""
    return schemas.ItemDetail(
        id=item.id,
        label=item.label,
        metadata=dict(item.metadata),
        thumbnail_url=thumbnail_url(gallery, item.id),
    )


def item_list(engine: SearchEngine, items: Sequence[Item], start: int) -> schemas.ItemList:
    """A page of items, of which the first is at row ``start``."""
    bundle, end = engine.bundle, start + len(items)
    n_items = bundle.retriever.gallery.n_items
    cursor = ItemsCursor(bundle=bundle.manifest.id, start=end)
    return schemas.ItemList(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        n_items=n_items,
        items=[item_detail(bundle.name, item) for item in items],
        next_cursor=write(cursor) if end < n_items else None,
    )


def thumbnail_url(gallery: str, item_id: str) -> str:
    """Where the picture of an item is."""
    return f"/v1/galleries/{quote(gallery)}/items/{quote(item_id)}/thumbnail"
