"""The paths that change a gallery while it is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, File, Form, Header, Path, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError

from model_store.errors import (
    ActivationRefused,
    ChangeUnconfirmed,
    GalleryNotFound,
    ImageTooLarge,
    InvalidRequest,
    ItemNotFound,
    KeyReused,
    QuotaExceeded,
    StorageFull,
    UnsupportedMediaType,
    WriteError,
    WriteRefused,
)
from model_store.gallery import ItemFields, Receipt, Written
from service import schemas
from service.access.access import requires
from service.access.caller import Caller
from service.http.problems import problem_document, responses
from service.http.routes.bundles import activation
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router
from service.http.routes.search import BODY_ERRORS, IMAGE_ERRORS, ONE_IMAGE
from service.http.routing import JSON, MULTIPART, body_of
from service.schemas.changes import MAX_CHANGES, BatchOptions, ItemId, UploadOptions
from service.serving.writer import Upload, WriteContext

router = gallery_router("changes")

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


@router.put(
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


@router.patch(
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


@router.delete(
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


@router.post(
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


@router.post(
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


def item_written(gallery: str, receipt: Receipt) -> schemas.ItemWritten:
    """Describe the receipt of a write with one item."""
    return _written(gallery, receipt, receipt.written[0])


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
                written=_written(gallery, receipt, next(rest)) if problem is None else None,
                problem=None if problem is None else schemas.Problem(**problem),
            )
        )
    return schemas.BatchWritten(request_id=receipt.note["request_id"], gallery=gallery, items=items)


def _written(gallery: str, receipt: Receipt, written: Written) -> schemas.ItemWritten:
    return schemas.ItemWritten(
        request_id=receipt.note["request_id"],
        gallery=gallery,
        id=written.id,
        existed=written.existed,
        version=written.version,
    )
