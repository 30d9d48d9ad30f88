"""The paths that calibrate, create, describe, rename and drop galleries."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

from fastapi import Depends, Query, Request, Response

from model_store.bundles.galleries import gallery_not_found
from model_store.errors import (
    Forbidden,
    GalleryExists,
    GalleryNotFound,
    ImageTooLarge,
    InvalidRequest,
    NotReady,
    QuotaExceeded,
    StorageFull,
    UnsupportedMediaType,
    WriteError,
    WriteRefused,
)
from service import schemas
from service.access.access import requires
from service.access.caller import Caller
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, ServiceState, StateOf, gallery_router, leased
from service.http.routes.galleries import gallery_detail
from service.http.routing import JSON, body_of
from service.serving.calibration_runs import LastCalibration, n_item_queries
from service.serving.lease import Lease

router = gallery_router("galleries")

CHANGE_ERRORS = (GalleryNotFound, Forbidden, InvalidRequest, WriteRefused, StorageFull, WriteError)
BODY_ERRORS = (ImageTooLarge, UnsupportedMediaType)

OPENED_AGAIN_S = 0.1
"""Seconds between two attempts to open a new gallery."""


@router.post(
    "/{gallery}/calibration",
    status_code=202,
    operation_id="calibrate_gallery",
    responses=responses(
        *(GalleryNotFound, ImageTooLarge, UnsupportedMediaType, InvalidRequest),
        *(WriteRefused, StorageFull, WriteError),
    ),
    dependencies=[Depends(requires("admin")), Depends(body_of(JSON))],
)
async def calibrate_gallery(
    lease: LeaseOf, state: StateOf, body: schemas.CalibrationWanted
) -> schemas.CalibrationRun:
    """Start a calibration of the gallery, with the queries and items that the gallery stores.

    If the gallery was never calibrated, each labelled item is a query with which the rest of the
    gallery is searched. At least 50 items must share their label with another photograph. The
    encoder must not have been trained on these photographs.

    The calibration needs `vouch-build` beside the service. It takes about half a minute, and
    continues after the answer. `GET …/calibration/run` returns its state. The service then serves
    the new bundle. If the calibration fails, nothing changes.
    """
    run = await state.calibrations.begin(lease, body.model_dump(exclude_none=True))
    return await lease.engine.compute(lambda: _described(run, lease))


@router.get(
    "/{gallery}/calibration/run",
    operation_id="get_calibration_run",
    responses=responses(GalleryNotFound),
)
async def get_calibration_run(lease: LeaseOf, state: StateOf) -> schemas.CalibrationRun:
    """Return the state of the last calibration that was started over HTTP."""
    last = state.calibrations.last
    return await lease.engine.compute(lambda: _described(last(lease.bundle), lease))


@router.post(
    "",
    status_code=201,
    operation_id="create_gallery",
    responses=responses(*CHANGE_ERRORS, *BODY_ERRORS, GalleryExists, QuotaExceeded),
    dependencies=[Depends(requires("admin")), Depends(body_of(JSON))],
)
async def create_gallery(
    request: Request, response: Response, state: StateOf, body: schemas.NewGallery
) -> schemas.GalleryDetail:
    """Create an empty gallery with the encoder of another gallery, or with the built-in encoder.

    The built-in encoder needs `vouch-build` beside the service. Without a calibration, the new
    gallery gives no probabilities and no `match`. Add items with labels, then start a calibration
    with `POST …/calibration`.
    """
    caller: Caller = request.state.caller
    _require_allowed(caller, body.name)
    if body.like is not None and not caller.sees(body.like):
        raise gallery_not_found(body.like)
    await state.created.create(
        body.name,
        body.like,
        body.title,
        body.description,
        caller.sees,
        caller.limits.max_galleries,
    )
    response.headers["Location"] = f"/v1/galleries/{body.name}"
    while True:  # until the deadline: the gallery exists, so the client must not create it again
        with suppress(NotReady):
            return await _detail(body.name, state)
        await asyncio.sleep(OPENED_AGAIN_S)


@router.patch(
    "/{gallery}",
    operation_id="describe_gallery",
    responses=responses(*CHANGE_ERRORS, *BODY_ERRORS),
    dependencies=[Depends(requires("admin")), Depends(body_of(JSON))],
)
async def describe_gallery(
    gallery: str, state: StateOf, body: schemas.GalleryChange
) -> schemas.GalleryDetail:
    """Change the title or description of a created gallery."""
    await state.created.describe(gallery, body.title, body.description)
    return await _detail(gallery, state)


@router.post(
    "/{gallery}/rename",
    operation_id="rename_gallery",
    responses=responses(*CHANGE_ERRORS, *BODY_ERRORS, GalleryExists),
    dependencies=[Depends(requires("admin")), Depends(body_of(JSON))],
)
async def rename_gallery(
    request: Request, gallery: str, state: StateOf, body: schemas.GalleryRename
) -> schemas.GalleryDetail:
    """Rename a created gallery. The old name no longer exists.

    Items, changes, decisions, cached queries and cursors stay valid.
    """
    _require_allowed(request.state.caller, body.name)
    await state.created.rename(gallery, body.name)
    return await _detail(body.name, state)


@router.delete(
    "/{gallery}",
    operation_id="drop_gallery",
    responses=responses(*CHANGE_ERRORS),
    dependencies=[Depends(requires("admin"))],
)
async def drop_gallery(
    gallery: str,
    state: StateOf,
    confirm: Annotated[str, Query(description="The gallery's name, again.", max_length=100)],
) -> schemas.GalleryDropped:
    """Drop a created gallery with all its items. This cannot be undone.

    The service answers requests in progress, and then removes the gallery's files.
    """
    if confirm != gallery:
        raise InvalidRequest(
            f"confirm is {confirm!r}, but the gallery's name is {gallery!r}. Nothing was dropped. "
            "Send the gallery's name as confirm."
        )
    await state.created.drop(gallery)
    return schemas.GalleryDropped(gallery=gallery)


async def _detail(name: str, state: ServiceState) -> schemas.GalleryDetail:
    async with leased(name, state) as lease:
        settings = state.settings
        url = settings.record_urls.get(name)
        return gallery_detail(lease, url, settings.image_origins)


def _require_allowed(caller: Caller, name: str) -> None:
    """Refuse a gallery name that the caller's key does not allow.

    Raises
    ------
    Forbidden
    """
    if not caller.sees(name):
        patterns = ", ".join(caller.limits.galleries or ())
        raise Forbidden(f"The key {caller.id} is for galleries called {patterns}, not {name!r}.")


def _described(run: LastCalibration, lease: Lease) -> schemas.CalibrationRun:
    return schemas.CalibrationRun(**asdict(run), n_item_queries=n_item_queries(lease.bundle))
