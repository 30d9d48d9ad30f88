"""The paths that start a calibration, and return its state."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import Depends

from model_store.errors import (
    GalleryNotFound,
    ImageTooLarge,
    InvalidRequest,
    StorageFull,
    UnsupportedMediaType,
    WriteError,
    WriteRefused,
)
from service import schemas
from service.access.access import requires
from service.http.bodies import JSON, body_of
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router
from service.serving.calibration_runs import CalibrationRun, n_item_queries
from service.serving.lease import Lease

router = gallery_router("galleries")


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


def _described(run: CalibrationRun, lease: Lease) -> schemas.CalibrationRun:
    return schemas.CalibrationRun(**asdict(run), n_item_queries=n_item_queries(lease.bundle))
