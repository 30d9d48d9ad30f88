"""The paths that check a gallery for its curator."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Query

from model_store.curation import (
    LEAST,
    FoundT,
    LabelError,
    NearDuplicates,
    Rows,
    label_errors,
    near_duplicates,
)
from model_store.errors import GalleryNotFound, InvalidCursor, OutdatedCursor
from model_store.gallery import Item
from service import schemas
from service.access.access import counts_as_search
from service.http import cursors
from service.http.answers import item_detail, picture_urls
from service.http.problems import responses
from service.http.routes.dependencies import (
    LeaseOf,
    PageCursor,
    ServiceState,
    StateOf,
    gallery_router,
)
from service.serializers import PictureUrls
from service.serving.curation import Check, ExaminedPage, examined_page
from service.serving.lease import Lease

LABEL_ERRORS: Check[LabelError] = Check("confidence", label_errors)
NEAR_DUPLICATES: Check[NearDuplicates] = Check("threshold", near_duplicates)

router = gallery_router("items")

Limit = Annotated[
    int, Query(ge=1, le=100, description="Number of results after which a page ends.")
]
BY_STRENGTH = (
    "Order of the results. `{}`: the largest first, over the whole gallery. The first pages then "
    "examine the gallery and have no results until `n_unranked` is 0."
)


@router.get(
    "/{gallery}/label-errors",
    operation_id="list_label_errors",
    responses=responses(GalleryNotFound, InvalidCursor, OutdatedCursor),
    dependencies=[Depends(counts_as_search)],
)
async def list_label_errors(
    lease: LeaseOf,
    state: StateOf,
    confidence: Annotated[
        float,
        Query(
            ge=LEAST,
            le=1,
            description="Minimum share of the neighbours that have the suggested label; nearer "
            "neighbours have a larger weight.",
        ),
    ] = 0.8,
    order: Annotated[
        Literal["id", "confidence"], Query(description=BY_STRENGTH.format("confidence"))
    ] = "id",
    limit: Limit = 50,
    cursor: PageCursor = None,
) -> schemas.LabelErrorList:
    """List items whose nearest neighbours have another label, page by page.

    A page ends after `limit` results or half a second of computation, so it can be empty before the
    last page. A cursor is valid for an hour, and only while the same bundle is served. Items
    without a label are not checked. With `order=confidence`, an item that is changed between two
    pages can be listed again, or be missing.
    """
    ranked = order == "confidence"
    page, after = await _page(lease, state, LABEL_ERRORS, confidence, limit, cursor, ranked=ranked)
    urls = picture_urls(lease.bundle)
    return schemas.LabelErrorList(
        items=[
            schemas.PossibleLabelError(
                item=item_detail(page.items[one.row], urls),
                suggested_label=page.gallery.labels[one.suggested],
                confidence=one.confidence,
                neighbours=_near(urls, page.items, one.neighbours, one.similarities.tolist()),
            )
            for one in page.found
        ],
        **_described(lease, page, after),
    )


@router.get(
    "/{gallery}/near-duplicates",
    operation_id="list_near_duplicates",
    responses=responses(GalleryNotFound, InvalidCursor, OutdatedCursor),
    dependencies=[Depends(counts_as_search)],
)
async def list_near_duplicates(
    lease: LeaseOf,
    state: StateOf,
    threshold: Annotated[
        float, Query(ge=LEAST, le=1, description="Minimum similarity of near duplicates.")
    ] = 0.99,
    order: Annotated[
        Literal["id", "similarity"], Query(description=BY_STRENGTH.format("similarity"))
    ] = "id",
    limit: Limit = 50,
    cursor: PageCursor = None,
) -> schemas.NearDuplicateList:
    """List items that have near duplicates in the gallery, page by page.

    Both items of a pair are listed, each with the other item as its duplicate. An item has at most
    20 near duplicates in the list. A page ends after `limit` results or half a second of
    computation, so it can be empty before the last page. A cursor is valid for an hour, and only
    while the same bundle is served. With `order=similarity`, an item that is changed between two
    pages can be listed again, or be missing.
    """
    ranked = order == "similarity"
    page, after = await _page(
        lease, state, NEAR_DUPLICATES, threshold, limit, cursor, ranked=ranked
    )
    urls = picture_urls(lease.bundle)
    return schemas.NearDuplicateList(
        items=[
            schemas.ItemWithDuplicates(
                item=item_detail(page.items[one.row], urls),
                duplicates=_near(urls, page.items, one.duplicates, one.similarities.tolist()),
            )
            for one in page.found
        ],
        **_described(lease, page, after),
    )


async def _page(
    lease: Lease,
    state: ServiceState,
    check: Check[FoundT],
    least: float,
    limit: int,
    cursor: str | None,
    *,
    ranked: bool,
) -> tuple[ExaminedPage[FoundT], str | None]:
    """Return a page of a check, and the cursor to the next page; None if no page follows."""
    selection = cursors.ListSelection(check.parameter, repr(least))
    signed = lease.bundle.manifest.id, lease.engine.secret, selection
    if ranked:
        place = cursors.place_before(cursor, *signed)
        page = await state.rankings.page(lease, place, limit, check, least)
        after = None if page.is_last else cursors.to_page_from(page.place, *signed)
        return page, after
    row = cursors.row_before(cursor, *signed)
    page = await lease.engine.compute(lambda: examined_page(lease.bundle, row, limit, check, least))
    return page, cursors.to_page_after(page.row, *signed)


def _described(lease: Lease, page: ExaminedPage[FoundT], next_cursor: str | None) -> dict[str, Any]:
    """Return the fields that the pages of all checks have."""
    return {
        "gallery": lease.bundle.name,
        "bundle_id": lease.bundle.manifest.id,
        "n_items": page.gallery.n_items,
        "n_examined": page.n_examined,
        "n_unranked": page.n_unranked,
        "next_cursor": next_cursor,
    }


def _near(
    urls: PictureUrls, items: dict[int, Item], rows: Rows, similarities: list[float]
) -> list[schemas.NearItem]:
    return [
        schemas.NearItem(**item_detail(items[row], urls).model_dump(), similarity=similarity)
        for row, similarity in zip(rows.tolist(), similarities, strict=True)
    ]
