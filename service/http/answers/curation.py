"""Near duplicates and possible label errors of a gallery."""

from __future__ import annotations

from model_store.curation import LabelError, NearDuplicates, Rows
from model_store.gallery import Item
from service import schemas
from service.http.answers.items import item_detail, picture_urls
from service.serializers import PictureUrls
from service.serving.curation import ExaminedPage
from service.serving.lease import Lease


def label_error_list(
    lease: Lease, page: ExaminedPage[LabelError], next_cursor: str | None
) -> schemas.LabelErrorList:
    """Describe possible label errors."""
    urls = picture_urls(lease.bundle)
    return schemas.LabelErrorList(
        gallery=lease.bundle.name,
        bundle_id=lease.bundle.manifest.id,
        n_items=page.gallery.n_items,
        n_examined=page.n_examined,
        n_unranked=page.n_unranked,
        items=[
            schemas.PossibleLabelError(
                item=item_detail(page.items[one.row], urls),
                suggested_label=page.gallery.labels[one.suggested],
                confidence=one.confidence,
                neighbours=_near(urls, page.items, one.neighbours, one.similarities.tolist()),
            )
            for one in page.found
        ],
        next_cursor=next_cursor,
    )


def near_duplicate_list(
    lease: Lease, page: ExaminedPage[NearDuplicates], next_cursor: str | None
) -> schemas.NearDuplicateList:
    """Describe near duplicates."""
    urls = picture_urls(lease.bundle)
    return schemas.NearDuplicateList(
        gallery=lease.bundle.name,
        bundle_id=lease.bundle.manifest.id,
        n_items=page.gallery.n_items,
        n_examined=page.n_examined,
        n_unranked=page.n_unranked,
        items=[
            schemas.ItemWithDuplicates(
                item=item_detail(page.items[one.row], urls),
                duplicates=_near(urls, page.items, one.duplicates, one.similarities.tolist()),
            )
            for one in page.found
        ],
        next_cursor=next_cursor,
    )


def _near(
    urls: PictureUrls, items: dict[int, Item], rows: Rows, similarities: list[float]
) -> list[schemas.NearItem]:
    return [
        schemas.NearItem(**item_detail(items[row], urls).model_dump(), similarity=similarity)
        for row, similarity in zip(rows.tolist(), similarities, strict=True)
    ]
