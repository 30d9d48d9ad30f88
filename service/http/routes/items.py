"""The paths of a gallery's items and sample queries, and of changes while it is served."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

from fastapi import Depends, File, Form, Header, Path, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError

from model_store.errors import (
    ActivationRefused,
    ChangeUnconfirmed,
    GalleryNotFound,
    ImageTooLarge,
    InternalError,
    InvalidCursor,
    InvalidFilter,
    InvalidRequest,
    ItemNotFound,
    KeyReused,
    OutdatedCursor,
    QuotaExceeded,
    SampleNotFound,
    StorageFull,
    UnsupportedMediaType,
    WriteError,
    WriteRefused,
)
from model_store.files import inside
from model_store.gallery import ItemFields, Receipt, Written, read_filter
from model_store.gallery.filters.grammar import MAX_BYTES
from model_store.images import encode_icon
from model_store.messages import message
from service import schemas, serializers
from service.access.access import Caller, counts_as_search, requires
from service.http import answers, cursors
from service.http.problems import problem_document, responses
from service.http.routing import JSON, MULTIPART, DirectRoute, body_of
from service.schemas.items import MAX_CHANGES, BatchOptions, ItemId, UploadOptions
from service.serving.queries import page_of, picture_of
from service.serving.writer import Upload, WriteContext

from .dependencies import (
    LeaseOf,
    PageCursor,
    StateOf,
    gallery_router,
    leased,
    options_in_address,
    options_of,
    parameters_of,
)
from .galleries import activation
from .search import BODY_ERRORS, IMAGE_ERRORS, ONE_IMAGE

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
    A gallery in a database other than PostgreSQL lists new and replaced items last, not by id.
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
    async with leased(gallery, request) as lease:
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
    "/{gallery}/items/{item_id:item_before}/similar",
    get_similar,
    methods=["GET"],
    operation_id="get_similar",
    responses=responses(GalleryNotFound, ItemNotFound, InvalidRequest, InvalidFilter),
    route_class_override=DirectRoute,
    dependencies=[Depends(counts_as_search), Depends(options_in_address(schemas.ListFields))],
)


@router.get(
    "/{gallery}/items/{item_id:item_before}/thumbnail",
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
    return _picture(request, found.data, found.media_type, PASSING)


def _picture(request: Request, data: bytes, media_type: str, cache_control: str) -> Response:
    """Return a picture, or 304 if the client has it."""
    tag = f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"'
    headers = {"Cache-Control": cache_control, "ETag": tag}
    known = request.headers.get("If-None-Match", "")
    if tag in known or known.strip() == "*":
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=media_type)


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
        304: {"description": "The picture matches `If-None-Match`."},
        **responses(GalleryNotFound, SampleNotFound, InvalidRequest),
    },
)
async def get_sample(
    request: Request,
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
            file = inside(bundle.directory, sample.file)
            data = await asyncio.to_thread(file.read_bytes)
            if size == "original":
                return _picture(request, data, "image/png", IMMUTABLE)
            small = (await lease.engine.decode(data, thumbnail=True)).thumbnail
            if small is None:
                raise InternalError("The decoder made no thumbnail.")
            icon = await lease.engine.compute(partial(encode_icon, small.data, ICON_SIDE))
            if icon is None:
                return _picture(request, small.data, small.media_type, IMMUTABLE)
            return _picture(request, icon, "image/jpeg", IMMUTABLE)
    raise SampleNotFound(f"The gallery {bundle.name!r} has no sample {sample_id!r}.")


changes_router = gallery_router("changes")

WRITE_ERRORS = (GalleryNotFound, WriteRefused, StorageFull, WriteError, ChangeUnconfirmed)

REPLAYED = "Idempotency-Replayed"

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Makes a retry safe. If the same request with the same key arrives again "
        "within a day, it gets the first answer, and is not executed twice.",
    ),
]


class ItemForm(UploadOptions):
    """An item, with its image file."""

    image: UploadFile = File(description=ONE_IMAGE)


class ItemBatchForm(BatchOptions):
    """Several items, each with an image file."""

    images: list[UploadFile] = File(
        min_length=1, max_length=MAX_CHANGES, description="Image files, one file for each item."
    )


async def context_of(request: Request, key: IdempotencyKey = None) -> WriteContext:
    """Return the context of a change: request id, caller, Idempotency-Key and item quota."""
    caller: Caller = request.state.caller
    limits = caller.limits
    return WriteContext(request.state.request_id, caller.account, key, limits.max_items)


ContextOf = Annotated[WriteContext, Depends(context_of)]


@changes_router.put(
    "/{gallery}/items/{item_id:item}",
    operation_id="put_item",
    responses=responses(*WRITE_ERRORS, *BODY_ERRORS, *IMAGE_ERRORS, KeyReused, QuotaExceeded),
    dependencies=[Depends(requires("write")), Depends(body_of(MULTIPART))],
)
async def put_item(
    lease: LeaseOf,
    context: ContextOf,
    response: Response,
    item_id: Annotated[ItemId, Path()],
    state: StateOf,
    form: Annotated[ItemForm, Form(media_type=MULTIPART)],
) -> schemas.ItemWritten:
    """Put an item into the gallery. An existing item with the same id is replaced.

    When the call returns, the item is on the disk and every search finds the item.
    """
    upload = Upload(item_id, form.label, form.metadata, await form.image.read())
    receipt = noted(context, response, await state.writer.put(lease, context, upload))
    return item_written(lease.bundle.name, receipt)


@changes_router.patch(
    "/{gallery}/items/{item_id:item}",
    operation_id="edit_item",
    responses=responses(
        *WRITE_ERRORS, ItemNotFound, InvalidRequest, KeyReused, ImageTooLarge, UnsupportedMediaType
    ),
    dependencies=[Depends(requires("write")), Depends(body_of(JSON))],
)
async def edit_item(
    lease: LeaseOf,
    context: ContextOf,
    response: Response,
    item_id: str,
    state: StateOf,
    body: schemas.ItemChange,
) -> schemas.ItemWritten:
    """Change the label or metadata of an item. The item keeps its picture and embedding.

    When the call returns, the change is on the disk and visible to every search. An omitted field
    does not change. For the calibration, an item with a new label counts as a changed item.
    """
    fields: ItemFields = body.model_dump(include=body.model_fields_set)  # type: ignore[assignment]
    receipt = noted(context, response, await state.writer.edit(lease, context, item_id, fields))
    return item_written(lease.bundle.name, receipt)


@changes_router.delete(
    "/{gallery}/items/{item_id:item}",
    operation_id="delete_item",
    responses=responses(*WRITE_ERRORS, ItemNotFound, InvalidRequest, KeyReused),
    dependencies=[Depends(requires("write"))],
)
async def delete_item(
    lease: LeaseOf, context: ContextOf, response: Response, item_id: str, state: StateOf
) -> schemas.ItemWritten:
    """Remove an item from the gallery. When the call returns, no search finds the item."""
    receipt = noted(context, response, await state.writer.delete(lease, context, item_id))
    return item_written(lease.bundle.name, receipt)


@changes_router.post(
    "/{gallery}/items",
    operation_id="put_items",
    responses=responses(*WRITE_ERRORS, *BODY_ERRORS, KeyReused, QuotaExceeded),
    dependencies=[Depends(requires("write")), Depends(body_of(MULTIPART))],
)
async def put_items(
    request: Request,
    lease: LeaseOf,
    context: ContextOf,
    response: Response,
    state: StateOf,
    form: Annotated[ItemBatchForm, Form(media_type=MULTIPART)],
) -> schemas.BatchWritten:
    """Put several items into the gallery. An invalid image does not affect the other items.

    The valid items are written in one transaction: after a crash, either all valid items are in the
    gallery, or no item.
    """
    if len(form.items) != len(form.images):
        raise RequestValidationError(
            [
                {
                    "type": "lengths",
                    "loc": ("body", "items"),
                    "msg": f"Has {len(form.items)} entries for {len(form.images)} images",
                }
            ]
        )
    uploads = [
        Upload(entry.id, entry.label, entry.metadata, await image.read())
        for entry, image in zip(form.items, form.images, strict=True)
    ]
    receipt = await state.writer.put_batch(
        lease, context, uploads, lambda error: problem_document(request, error).model_dump()
    )
    ids = [upload.id for upload in uploads]
    return _batch_written(lease.bundle.name, ids, noted(context, response, receipt))


@changes_router.post(
    "/{gallery}/compact",
    operation_id="compact_gallery",
    dependencies=[Depends(requires("admin"))],
    responses=responses(*WRITE_ERRORS, ActivationRefused),
)
async def compact_gallery(gallery: str, state: StateOf) -> schemas.Activation:
    """Compact a gallery: merge the bundle and its changes into a new bundle, and serve this bundle.

    After a compaction, the gallery has the same items, and searches are faster than before. A
    rollback returns to the state before the compaction. The service compacts automatically after
    `VOUCH_COMPACT_AFTER` changes.
    """
    return activation(gallery, await state.galleries.compact(gallery))


def noted(context: WriteContext, response: Response, receipt: Receipt) -> Receipt:
    """Set a header if this request repeats an earlier request with the same Idempotency-Key."""
    if receipt.note["request_id"] != context.request_id:
        response.headers[REPLAYED] = "true"
    return receipt


def item_written(
    gallery: str, receipt: Receipt, written: Written | None = None
) -> schemas.ItemWritten:
    """Describe the result of one write of a request; by default of the first write."""
    fields = asdict(receipt.written[0] if written is None else written)
    return schemas.ItemWritten(request_id=receipt.note["request_id"], gallery=gallery, **fields)


def _batch_written(gallery: str, ids: Sequence[str], receipt: Receipt) -> schemas.BatchWritten:
    """Describe the outcome of each upload of a batch; ``ids`` has the item ids in upload order."""
    problems, rest = receipt.note["problems"], iter(receipt.written)
    items = []
    for index, item_id in enumerate(ids):
        problem = problems.get(str(index))
        items.append(
            schemas.BatchItemWritten(
                index=index,
                id=item_id,
                status=200 if problem is None else problem["status"],
                written=item_written(gallery, receipt, next(rest)) if problem is None else None,
                problem=None if problem is None else schemas.Problem(**problem),
            )
        )
    return schemas.BatchWritten(request_id=receipt.note["request_id"], gallery=gallery, items=items)
