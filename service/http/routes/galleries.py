"""The paths of galleries and of their calibration reports."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from model_store.bundles.operator import OperatorSettings
from model_store.encoder.contract import QueryKind
from model_store.errors import (
    GalleryNotFound,
    ImageTooLarge,
    InvalidRequest,
    UnsupportedMediaType,
)
from model_store.verdicts import Order
from service import schemas
from service.access.access import requires
from service.http import answers
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router
from service.http.routing import JSON, body_of

router = gallery_router("galleries")

OrderAsked = Annotated[
    Order | None,
    Query(
        description="Order of the results for which the report is computed. Default: the order in "
        "the gallery's calibration."
    ),
]


KindAsked = Annotated[
    QueryKind, Query(description="Kind of the queries for which the report is computed.")
]


@router.get("", operation_id="list_galleries")
async def list_galleries(request: Request, state: StateOf) -> schemas.GalleryList:
    """List the served galleries that the caller's key can use."""
    return answers.gallery_list(await state.created.listed(), request.state.caller.sees)


@router.get("/{gallery}", operation_id="get_gallery", responses=responses(GalleryNotFound))
async def get_gallery(lease: LeaseOf, state: StateOf) -> schemas.GalleryDetail:
    """Describe a gallery: size, encoder, calibration, measured quality, and sample queries."""
    return answers.gallery_detail(
        lease,
        state.settings.record_urls.get(lease.bundle.name),
        state.settings.image_origins,
    )


@router.get("/{gallery}/facets", operation_id="list_facets", responses=responses(GalleryNotFound))
async def list_facets(
    lease: LeaseOf,
    limit: Annotated[
        int, Query(ge=1, le=100, description="Maximum number of values for each field.")
    ] = 20,
) -> schemas.FacetList:
    """List the indexed fields for filters, with the most frequent values of each field."""
    return await lease.engine.compute(lambda: answers.facet_list(lease.bundle, limit))


@router.get("/{gallery}/labels", operation_id="list_labels", responses=responses(GalleryNotFound))
async def list_labels(
    lease: LeaseOf,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Maximum number of labels on a page.")
    ] = 100,
    after: Annotated[
        str | None, Query(max_length=4096, description="`next_after` of the previous page.")
    ] = None,
) -> schemas.LabelList:
    """List the gallery's labels by name, page by page."""
    return await lease.engine.compute(lambda: answers.label_list(lease, after, limit))


@router.get(
    "/{gallery}/calibration",
    operation_id="get_calibration",
    responses=responses(GalleryNotFound),
)
async def get_calibration(
    lease: LeaseOf,
    state: StateOf,
    order: OrderAsked = None,
    kind: KindAsked = "image",
    *,
    curve: Annotated[
        bool,
        Query(description="False leaves `risk_coverage` empty, and makes the report much shorter."),
    ] = True,
) -> schemas.CalibrationReport:
    """Report how accurate the probabilities are, and the error rates at each threshold."""
    lease = lease.for_kind(kind)
    kept, key = state.feedback, lease.watch.key
    said = None if kept is None else await lease.engine.compute(lambda: kept.summary(key))
    return answers.calibration_report(lease, said, order, with_curve=curve)


@router.post(
    "/{gallery}/calibration/absent-share",
    operation_id="adopt_absent_share",
    responses=responses(GalleryNotFound, ImageTooLarge, UnsupportedMediaType, InvalidRequest),
    dependencies=[Depends(requires("admin")), Depends(body_of(JSON))],
)
async def adopt_absent_share(
    lease: LeaseOf, body: schemas.AdoptedShare
) -> schemas.OperatorDecision:
    """Set the gallery's share of absent queries.

    A share in the request or in the key takes precedence. The share changes probabilities and
    guarantees. `absent` in each answer contains the share that was used. `GET …/calibration`
    estimates the share from served queries (`absent.estimated`).
    """
    persisted = await lease.engine.decide_as_operator(lambda now: now.with_share(body.share))
    return answers.operator_decision(lease, (), persisted=persisted)


@router.delete(
    "/{gallery}/calibration/absent-share",
    operation_id="reset_absent_share",
    responses=responses(GalleryNotFound),
    dependencies=[Depends(requires("admin"))],
)
async def reset_absent_share(lease: LeaseOf) -> schemas.OperatorDecision:
    """Reset the gallery's share of absent queries to the share in its configuration."""
    persisted = await lease.engine.decide_as_operator(lambda now: now.with_share(None))
    return answers.operator_decision(lease, (), persisted=persisted)


@router.post(
    "/{gallery}/calibration/acknowledge",
    operation_id="acknowledge_drift",
    responses=responses(GalleryNotFound),
    dependencies=[Depends(requires("admin"))],
)
async def acknowledge_drift(lease: LeaseOf) -> schemas.OperatorDecision:
    """End all drift alarms of the gallery, and restart the drift tests.

    If queries still differ from the calibration queries, the alarm returns. In this case, calibrate
    with recent queries.
    """
    watches = lease.engine.watches.values()
    alarmed = sorted({caller for one in watches for caller in one.drift.report.alarmed})
    persisted = await lease.engine.decide_as_operator(OperatorSettings.acknowledged)
    return answers.operator_decision(lease, alarmed, persisted=persisted)


@router.get(
    "/{gallery}/calibration/operating-points",
    operation_id="get_operating_point",
    responses=responses(GalleryNotFound),
)
async def get_operating_point(
    lease: LeaseOf,
    max_error: Annotated[
        float, Query(gt=0, lt=1, description="Maximum share of `match` verdicts that are wrong.")
    ],
    expected_absent: Annotated[
        float | None,
        Query(gt=0, lt=1, description="Assumed share of queries without a match in the gallery."),
    ] = None,
    source: Annotated[
        str | None, Query(max_length=200, description="`source` of the calibration queries.")
    ] = None,
    order: OrderAsked = None,
    kind: KindAsked = "image",
) -> schemas.OperatingPointAnswer:
    """Find the threshold with the most `match` verdicts and an error of at most `max_error`."""
    lease = lease.for_kind(kind)
    return answers.operating_point(lease, max_error, expected_absent, source, order)
