"""The paths of a gallery's items and sample queries."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import Annotated, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.responses import FileResponse

from model_store.errors import (
    GalleryNotFound,
    InternalError,
    InvalidCursor,
    InvalidFilter,
    InvalidRequest,
    ItemNotFound,
    OutdatedCursor,
    SampleNotFound,
)
from model_store.gallery import read_filter
from model_store.gallery.filters.grammar import MAX_BYTES
from model_store.images import encode_icon
from model_store.messages import message
from model_store.paths import inside
from service import schemas, serializers
from service.access.access import counts_as_search
from service.http import answers, cursors
from service.http.problems import responses
from service.http.routes.dependencies import (
    LeaseOf,
    PageCursor,
    gallery_router,
    leased,
    options_in_address,
    options_of,
    parameters_of,
    state_of,
)
from service.http.routing import DirectRoute
from service.serving.queries import page_of, picture_of

IMMUTABLE = "public, max-age=86400"
"""Cache policy of sample queries, which never change because bundles never change."""

ICON_SIDE = 96
"""Longest side of a small version of a sample query, in pixels. The page shows it at half this
size."""

PASSING = "public, max-age=60"
"""Cache policy of item pictures, which change when an item is replaced."""

router = gallery_router("items")


@router.get(
    "/{gallery}/items",
    operation_id="list_items",
    responses=responses(GalleryNotFound, InvalidCursor, OutdatedCursor, InvalidFilter),
)
async def list_items(
    lease: LeaseOf,
    limit: Annotated[
        int, Query(ge=1, le=100, description="Maximum number of items on a page.")
    ] = 50,
    cursor: PageCursor = None,
    where: Annotated[
        schemas.FilterText,
        Query(
            alias="filter",
            max_length=MAX_BYTES,
            json_schema_extra={"minLength": 2},
            description="Filter for the items to list, as in a search. Send the same filter for "
            "each page.",
        ),
    ] = None,
) -> schemas.ItemList:
    """List the gallery's items by id, page by page.

    A cursor expires after an hour, or when another bundle is served. A new item is listed if its id
    belongs to a page that the client has not read. All other items are listed exactly once.
    """
    passes = None if where is None else read_filter(where)
    selection = cursors.ListSelection.by_filter(where)
    signed = lease.bundle.manifest.id, lease.engine.secret, selection
    after = cursors.row_before(cursor, *signed)
    page = await lease.engine.compute(lambda: page_of(lease.bundle, after, limit, passes))
    bundle = lease.bundle
    urls = answers.picture_urls(bundle)
    return schemas.ItemList(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        n_items=bundle.retriever.gallery.n_items,
        n_passing=page.n_passing,
        items=[answers.item_detail(item, urls) for item in page.items],
        next_cursor=cursors.to_page_after(page.last, *signed),
    )


async def get_similar(request: Request, gallery: str, item_id: str) -> schemas.SimilarAnswer:
    """List the items most similar to an item of the gallery, without the item itself.

    No image is encoded. There are no probabilities and the verdict is `not_calibrated`, because
    the calibration is valid only for queries that are not in the gallery.
    """
    options = options_of(request, schemas.ListFields)
    async with leased(gallery, await state_of(request), request) as lease:
        similar = await lease.similar(item_id, parameters_of(options))
        bundle, answer = lease.bundle, similar.answer
        decision = answer.decision
        urls = answers.picture_urls(bundle)
        return schemas.SimilarAnswer(
            request_id=request.state.request_id,
            gallery=bundle.name,
            item=answers.item_detail(similar.item, urls),
            verdict=decision.verdict,
            reason=message("items_have_no_probability"),
            uncertainty=serializers.uncertainty(decision.assessment, bundle.retriever.posterior),
            results=[serializers.result(match, urls) for match in answer.matches],
            explain=answer.explain,
            bundle=answers.bundle_state(lease),
            timing_ms=serializers.milliseconds(similar.seconds),
        )


router.add_api_route(
    "/{gallery}/items/{item_id:path}/similar",
    get_similar,
    methods=["GET"],
    operation_id="get_similar",
    responses=responses(GalleryNotFound, ItemNotFound, InvalidRequest, InvalidFilter),
    route_class_override=DirectRoute,
    dependencies=[Depends(counts_as_search), Depends(options_in_address(schemas.ListFields))],
)


@router.get(
    "/{gallery}/items/{item_id:path}/thumbnail",
    operation_id="get_thumbnail",
    response_class=Response,
    responses={
        200: {"content": {"image/png": {}, "image/jpeg": {}}},
        304: {"description": "The picture matches `If-None-Match`."},
        **responses(GalleryNotFound, ItemNotFound, InvalidRequest),
    },
)
async def get_thumbnail(
    request: Request,
    lease: LeaseOf,
    item_id: str,
    size: Annotated[
        Literal["thumbnail", "preview"],
        Query(
            description="`preview`: a larger picture. A gallery without previews returns the "
            "thumbnail."
        ),
    ] = "thumbnail",
) -> Response:
    """Return a small picture of an item, re-encoded from its pixels."""
    gallery = lease.bundle.retriever.gallery
    found = await lease.engine.compute(lambda: picture_of(gallery, item_id, size))
    if not found.data:
        raise ItemNotFound(f"There is no picture of {item_id!r}: the gallery has only vectors.")
    tag = f'"{hashlib.blake2b(found.data, digest_size=16).hexdigest()}"'
    headers = {"Cache-Control": PASSING, "ETag": tag}
    known = request.headers.get("If-None-Match", "")
    if tag in known or known.strip() == "*":
        return Response(status_code=304, headers=headers)
    return Response(found.data, headers=headers, media_type=found.media_type)


@router.get(
    "/{gallery}/items/{item_id:item}",
    operation_id="get_item",
    responses=responses(GalleryNotFound, ItemNotFound),
)
async def get_item(lease: LeaseOf, item_id: str) -> schemas.ItemDetail:
    """Describe one item of the gallery."""
    gallery = lease.bundle.retriever.gallery
    item = await lease.engine.compute(lambda: gallery.item(item_id))
    return answers.item_detail(item, answers.picture_urls(lease.bundle))


@router.get(
    "/{gallery}/samples/{sample_id}",
    operation_id="get_sample",
    response_class=Response,
    responses={
        200: {"content": {"image/png": {}, "image/jpeg": {}}},
        **responses(GalleryNotFound, SampleNotFound, InvalidRequest),
    },
)
async def get_sample(
    lease: LeaseOf,
    sample_id: str,
    size: Annotated[
        Literal["original", "thumbnail"], Query(description="`thumbnail`: a small version.")
    ] = "original",
) -> Response:
    """Return the image of a sample query."""
    bundle = lease.bundle
    for sample in bundle.manifest.samples:
        if sample.id == sample_id:
            headers = {"Cache-Control": IMMUTABLE}
            file = inside(bundle.directory, sample.file)
            if size == "original":
                return FileResponse(file, headers=headers, media_type="image/png")
            data = await asyncio.to_thread(file.read_bytes)
            small = (await lease.engine.decode(data, thumbnail=True)).thumbnail
            if small is None:
                raise InternalError("The decoder made no thumbnail.")
            icon = await lease.engine.compute(partial(encode_icon, small.data, ICON_SIDE))
            if icon is None:
                return Response(small.data, headers=headers, media_type=small.media_type)
            return Response(icon, headers=headers, media_type="image/jpeg")
    raise SampleNotFound(f"The gallery {bundle.name!r} has no sample {sample_id!r}.")
