"""The items of a gallery."""

from __future__ import annotations

import re
from urllib.parse import quote

from model_store.bundles.bundle import Bundle
from model_store.gallery import Item
from service import schemas
from service.access.proxies import root_path
from service.http.cursors import ListSelection, to_page_after
from service.serializers import PictureUrls
from service.serving.lease import Lease
from service.serving.queries import Page

_PLAIN = re.compile(r"[\w.~/-]*", re.ASCII)


def item_detail(item: Item, urls: PictureUrls) -> schemas.ItemDetail:
    """One item; ``urls`` are the `picture_urls` of its bundle."""
    thumbnail, preview = urls(item.id)
    return schemas.ItemDetail(
        id=item.id,
        label=item.label,
        metadata=dict(item.metadata),
        thumbnail_url=thumbnail,
        preview_url=preview,
    )


def item_list(lease: Lease, page: Page, selection: ListSelection) -> schemas.ItemList:
    """Describe a page of items; ``selection`` is for its cursor."""
    bundle = lease.bundle
    urls = picture_urls(bundle)
    return schemas.ItemList(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        n_items=bundle.retriever.gallery.n_items,
        n_passing=page.n_passing,
        items=[item_detail(item, urls) for item in page.items],
        next_cursor=to_page_after(page.last, bundle.manifest.id, lease.engine.secret, selection),
    )


def gallery_url(bundle: Bundle) -> str:
    """Return the URL path of a gallery, with the path prefix of the client's proxy."""
    return f"{root_path.get()}/v1/galleries/{_quoted(bundle.name)}"


def picture_urls(bundle: Bundle) -> PictureUrls:
    """Return a function that maps an item's id to the URL paths of its thumbnail and preview.

    The thumbnail is None in a gallery of vectors, the preview in a gallery without previews.
    """
    if not bundle.retriever.encoder.metadata.takes_images:
        return lambda _: (None, None)
    items = f"{gallery_url(bundle)}/items/"
    has_previews = bundle.retriever.gallery.preview_side is not None

    def urls(item_id: str) -> tuple[str, str | None]:
        thumbnail = f"{items}{_quoted(item_id)}/thumbnail"
        return thumbnail, f"{thumbnail}?size=preview" if has_previews else None

    return urls


def _quoted(text: str) -> str:
    """Percent-encode an id; call `quote`, which is slow, only for an id with special characters."""
    return text if _PLAIN.fullmatch(text) else quote(text)
