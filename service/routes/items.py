"""The items of a gallery, and its sample queries."""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import FileResponse

from model_store.errors import GalleryNotFound, ItemNotFound, SampleNotFound
from service import answers, schemas
from service.problems import responses
from service.routes.dependencies import EngineOf, gallery_router

IMMUTABLE = "public, max-age=86400"
"""Thumbnails and samples belong to a bundle, and a bundle never changes."""

router = gallery_router("items")


@router.get(
    "/{gallery}/items/{item_id:path}/thumbnail",
    operation_id="get_thumbnail",
    response_class=Response,
    responses={
        200: {"content": {"image/png": {}, "image/jpeg": {}}},
        **responses(GalleryNotFound, ItemNotFound),
    },
)
async def get_thumbnail(engine: EngineOf, item_id: str) -> Response:
    """A small picture of an item, re-encoded from its pixels."""
    gallery = engine.bundle.retriever.gallery
    thumbnail = await engine.compute(lambda: gallery.thumbnail(item_id))
    headers = {"Cache-Control": IMMUTABLE}
    return Response(thumbnail.data, headers=headers, media_type=thumbnail.media_type)


@router.get(
    "/{gallery}/items/{item_id:path}",
    operation_id="get_item",
    responses=responses(GalleryNotFound, ItemNotFound),
)
async def get_item(engine: EngineOf, item_id: str) -> schemas.ItemDetail:
    """One item of the gallery."""
    gallery = engine.bundle.retriever.gallery
    item = await engine.compute(lambda: gallery.item(item_id))
    return answers.item_detail(engine.bundle.name, item)


@router.get(
    "/{gallery}/samples/{sample_id}",
    operation_id="get_sample",
    response_class=Response,
    responses={200: {"content": {"image/png": {}}}, **responses(GalleryNotFound, SampleNotFound)},
)
async def get_sample(engine: EngineOf, sample_id: str) -> Response:
    """The image of a sample query."""
    bundle = engine.bundle
    for sample in bundle.manifest.samples:
        if sample.id == sample_id:
            headers = {"Cache-Control": IMMUTABLE}
            return FileResponse(bundle.directory / sample.file, headers=headers)
    raise SampleNotFound(f"The gallery {bundle.name!r} has no sample {sample_id!r}.")
