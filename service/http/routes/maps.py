"""The paths of the map, which shows the items of a gallery in two dimensions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from model_store.errors import GalleryNotFound, InvalidFilter, InvalidRequest, OutdatedCursor
from model_store.gallery import read_filter
from model_store.gallery.filters.grammar import MAX_BYTES
from model_store.gallery_map import LABEL, MAX_POINTS, colours_of, points_of
from service import schemas
from service.access.access import counts_as_search
from service.http import answers
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router

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
) -> schemas.GalleryMap:
    """Return the gallery's items in two dimensions."""
    bundle = lease.bundle
    gallery = bundle.retriever.gallery
    passes = None if where is None else read_filter(where)
    plane = await state.planes.of(lease)

    def drawn() -> schemas.GalleryMap:
        points = points_of(gallery, plane, passes)
        colours = colours_of(gallery, points.rows, colour_by)
        return answers.gallery_map(bundle, plane, points, colour_by, colours)

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
) -> schemas.MapItems:
    """List items of the map by their row numbers. Deleted and replaced items are omitted."""
    bundle = lease.bundle
    if bundle_id != bundle.manifest.id:
        raise OutdatedCursor(
            f"The map belongs to bundle {bundle_id[:12]}, but {bundle.manifest.id[:12]} is served "
            "now: the numbers of its items are no longer valid. Request the map again."
        )
    return await lease.engine.compute(
        lambda: answers.map_items(bundle, [int(row) for row in rows.split(",")])
    )
