"""The paths that show a gallery to its curator: map, near duplicates, possible label errors."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import Depends, Query
from numpy.typing import NDArray
from pydantic import BaseModel, Field, WithJsonSchema

from model_store.bundles.bundle import Bundle
from model_store.curation import (
    LEAST,
    FoundT,
    LabelError,
    NearDuplicates,
    Rows,
    label_errors,
    near_duplicates,
)
from model_store.errors import (
    GalleryNotFound,
    InvalidCursor,
    InvalidFilter,
    InvalidRequest,
    OutdatedCursor,
)
from model_store.gallery import Item, read_filter
from model_store.gallery.filters.grammar import MAX_BYTES
from model_store.gallery_map import (
    LABEL,
    MAX_POINTS,
    Colour,
    ItemPoints,
    Plane,
    colours_of,
    points_of,
)
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
from service.schemas.items import ItemDetail
from service.serializers import PictureUrls
from service.serving.curation import Check, ExaminedPage, examined_page
from service.serving.lease import Lease

Base64 = Annotated[str, WithJsonSchema({"type": "string", "contentEncoding": "base64"})]
"""Little-endian numbers in base64; the field's description states their type."""


class MapColour(BaseModel):
    """A colour of the map: a value of the field, or a range of numbers."""

    value: str | int | float | bool | None = Field(description="Null for a range.")
    least: float | None = Field(
        description="Start of the range; null if the colour stands for a value."
    )
    greatest: float | None = Field(
        description="End of the range; only the last range includes its end. Null for a value."
    )
    n_items: int = Field(description="Number of items on the map with this colour.")


class GalleryMap(BaseModel):
    """The items of a gallery in two dimensions.

    The arrays `rows`, `x`, `y` and `codes` have one element for each item, in the same order.
    """

    gallery: str
    bundle_id: str
    n_items: int = Field(description="Number of items in the whole gallery.")
    n_passing: int = Field(
        description="Number of items that pass the filter; all items without a filter."
    )
    n_shown: int = Field(
        description="Number of items on the map; fewer than `n_passing` if the map shows a sample."
    )
    variance_shares: list[float] = Field(
        description="Share of the variance of the embeddings along each axis."
    )
    colour_by: str = Field(description="Field of the colours.")
    colours: list[MapColour] = Field(
        description="The most frequent values first, or ranges in ascending order."
    )
    rows: Base64 = Field(
        description="uint32: number of the item for `GET …/map/items`, valid for this bundle."
    )
    x: Base64 = Field(description="uint16: coordinate along the first axis.")
    y: Base64 = Field(description="uint16: coordinate along the second axis, in the same scale.")
    codes: Base64 = Field(description="uint8: index in `colours`, or 255 for other values.")


class MapItem(ItemDetail):
    """One item of a gallery, and its number on the map."""

    row: int


class MapItems(BaseModel):
    """Items of a map."""

    gallery: str
    bundle_id: str
    items: list[MapItem] = Field(
        description="Items in ascending order of `row`. Deleted and replaced items are left out."
    )


MAX_ROWS = 200
"""Maximum number of items in one request."""

router = gallery_router("items")


@router.get(
    "/{gallery}/map",
    operation_id="get_map",
    responses=responses(GalleryNotFound, InvalidRequest, InvalidFilter),
    dependencies=[Depends(counts_as_search)],
    description="Return the gallery's items in two dimensions: the first two principal components "
    "of their embeddings.\n\n"
    f"For a gallery with more than {MAX_POINTS:,} items, the map has a sample of the items, the "
    "same at each call. The map shows only a part of the variance: see `variance_shares`. "
    "The axes are computed again after each change of the gallery.",
)
async def get_map(
    lease: LeaseOf,
    state: StateOf,
    colour_by: Annotated[
        str,
        Query(
            min_length=1,
            max_length=MAX_BYTES,
            description="Field whose values set the colours of items: `label`, or a field that "
            "`GET …/facets` lists.",
        ),
    ] = LABEL,
    where: Annotated[
        schemas.FilterText,
        Query(
            alias="filter",
            max_length=MAX_BYTES,
            json_schema_extra={"minLength": 2},
            description="Filter for the items to show, as in a search. A filter does not change "
            "the axes of the map.",
        ),
    ] = None,
) -> GalleryMap:
    """Return the gallery's items in two dimensions."""
    bundle = lease.bundle
    gallery = bundle.retriever.gallery
    passes = None if where is None else read_filter(where)
    plane = await state.planes.of(lease)

    def drawn() -> GalleryMap:
        points = points_of(gallery, plane, passes)
        colours = colours_of(gallery, points.rows, colour_by)
        return _gallery_map(bundle, plane, points, colour_by, colours)

    return await lease.engine.compute(drawn)


@router.get(
    "/{gallery}/map/items",
    operation_id="list_map_items",
    responses=responses(GalleryNotFound, InvalidRequest, OutdatedCursor),
)
async def list_map_items(
    lease: LeaseOf,
    bundle_id: Annotated[str, Query(max_length=64, description="`bundle_id` of the map.")],
    rows: Annotated[
        str,
        Query(
            max_length=11 * MAX_ROWS,
            pattern=rf"^\d{{1,10}}(,\d{{1,10}}){{0,{MAX_ROWS - 1}}}$",
            description=f"Numbers from `rows` of the map, separated by commas; at most {MAX_ROWS}.",
        ),
    ],
) -> MapItems:
    """List items of the map by their row numbers. Deleted and replaced items are omitted."""
    bundle = lease.bundle
    if bundle_id != bundle.manifest.id:
        raise OutdatedCursor(
            f"The map belongs to bundle {bundle_id[:12]}, but {bundle.manifest.id[:12]} is served "
            "now: the numbers of its items are no longer valid. Request the map again."
        )
    return await lease.engine.compute(
        lambda: _map_items(bundle, [int(row) for row in rows.split(",")])
    )


def _gallery_map(
    bundle: Bundle,
    plane: Plane,
    points: ItemPoints,
    colour_by: str,
    colours: tuple[Sequence[Colour], NDArray[np.uint8]],
) -> GalleryMap:
    """Describe the map of a gallery."""
    listed, codes = colours
    return GalleryMap(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        n_items=bundle.retriever.gallery.n_items,
        n_passing=points.n_passing,
        n_shown=len(points.rows),
        variance_shares=plane.shares.tolist(),
        colour_by=colour_by,
        colours=[MapColour.model_validate(colour, from_attributes=True) for colour in listed],
        rows=_encoded(points.rows, "<u4"),
        x=_encoded(points.positions[:, 0], "<u2"),
        y=_encoded(points.positions[:, 1], "<u2"),
        codes=_encoded(codes, "u1"),
    )


def _map_items(bundle: Bundle, rows: Sequence[int]) -> MapItems:
    """Describe the items with these row numbers; numbers of deleted items are ignored."""
    gallery, urls = bundle.retriever.gallery, picture_urls(bundle)
    current = np.intersect1d(np.array(rows, dtype=np.int64), gallery.rows())
    return MapItems(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        items=[
            MapItem(row=row, **item_detail(item, urls).model_dump())
            for row, item in zip(current.tolist(), gallery.items(current), strict=True)
        ],
    )


def _encoded(numbers: NDArray[np.generic], kind: str) -> str:
    return base64.b64encode(numbers.astype(kind).tobytes()).decode()


LABEL_ERRORS: Check[LabelError] = Check("confidence", label_errors)
NEAR_DUPLICATES: Check[NearDuplicates] = Check("threshold", near_duplicates)


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
