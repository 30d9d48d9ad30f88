"""Turns queries into items, from the stored embedding and image of the query."""

from __future__ import annotations

import asyncio

from model_store.errors import QueryNotFound
from model_store.gallery import NewItem, Thumbnail, Upsert, Vector
from service.schemas import ItemOfQuery
from service.serving.lease import Lease

_GREY_PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000"
    "000a49444154789c636800000082008177cd72b60000000049454e44ae426082"
)

NO_PICTURE = Thumbnail(_GREY_PIXEL, "image/png"), b""
"""Thumbnail and preview of an item that was made from a query without a stored image."""


async def item_of_query(lease: Lease, query_id: str, item: ItemOfQuery) -> Upsert:
    """Return the write that turns a query into an item, with the query image if it was kept.

    Raises
    ------
    QueryNotFound : no embedding of the query is stored.
    """
    await lease.engine.reviews.keep()  # the query and its image may wait to be written
    found = await lease.engine.retained.find(query_id)
    if found is None:
        raise QueryNotFound(
            f"The embedding of the query {query_id[:12]}… is not stored, so it cannot become an "
            "item. Put the item with its image (`PUT …/items/{id}`), and decide `new` without "
            "`item`. The operator can keep queries with VOUCH_QUERY_RETENTION_S or "
            "VOUCH_REVIEW_REASONS."
        )
    return Upsert(
        NewItem(item.id, item.label, item.metadata, *await picture_of_case(lease, query_id)),
        Vector(found.mean[0], found.variance[0], found.features[0]),
    )


async def picture_of_case(lease: Lease, query_id: str) -> tuple[Thumbnail, bytes]:
    """Return an item's thumbnail and preview from the stored image of a query."""
    reviews = lease.engine.reviews
    if reviews.queue is None:
        return NO_PICTURE
    picture = await asyncio.to_thread(reviews.queue.picture, lease.bundle.key, query_id)
    if picture is None:
        return NO_PICTURE
    if reviews.terms.image == "original":
        _, thumbnail, preview = await lease.engine.encode_item(picture.data)
        return thumbnail, preview
    return Thumbnail(picture.data, picture.media_type), b""
