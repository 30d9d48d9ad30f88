"""The paths of galleries: reports, bundles, calibration, creation, renaming and deletion."""

from __future__ import annotations

import asyncio
import heapq
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Query, Request, Response

from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import OperatorSettings
from model_store.bundles.galleries import gallery_not_found
from model_store.decision import Calibration, MatchThreshold, estimate_error
from model_store.decision.calibration import DEFAULT_ABSENT, written_at
from model_store.encoder.contract import QueryKind
from model_store.errors import (
    ActivationRefused,
    BundleNotFound,
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
from model_store.messages import Order, message
from model_store.records import FeedbackSummary
from service import schemas
from service.access.access import Caller, requires
from service.access.hosts import root_path
from service.http import answers
from service.http.problems import responses
from service.http.routing import JSON, body_of
from service.observability.logs import request_record
from service.serving.calibration_runs import LastCalibration, n_item_queries
from service.serving.lease import Lease
from service.serving.registry import Switched
from service.serving.reviewing import Audit
from service.settings import Settings

from .dependencies import LeaseOf, ServiceState, StateOf, gallery_router

router = gallery_router("galleries")

N_LABELS = 12
"""Maximum number of labels in a gallery's description; there may be hundreds of thousands."""

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
    return schemas.GalleryList(
        galleries=[
            schemas.GalleryName.model_validate(one, from_attributes=True)
            for one in await state.created.listed()
            if request.state.caller.limits.sees(one.name)
        ]
    )


@router.get("/{gallery}", operation_id="get_gallery", responses=responses(GalleryNotFound))
async def get_gallery(lease: LeaseOf, state: StateOf) -> schemas.GalleryDetail:
    """Describe a gallery: size, encoder, calibration, measured quality, and sample queries."""
    return gallery_detail(lease, state.settings)


@router.get("/{gallery}/facets", operation_id="list_facets", responses=responses(GalleryNotFound))
async def list_facets(
    lease: LeaseOf,
    limit: Annotated[
        int, Query(ge=1, le=100, description="Maximum number of values for each field.")
    ] = 20,
) -> schemas.FacetList:
    """List the indexed fields for filters, with the most frequent values of each field."""
    return await lease.engine.compute(lambda: _facet_list(lease.bundle, limit))


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
    return await lease.engine.compute(lambda: _label_list(lease, after, limit))


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
    return _calibration_report(lease, said, order, with_curve=curve)


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
    return _operator_decision(lease, (), persisted=persisted)


@router.delete(
    "/{gallery}/calibration/absent-share",
    operation_id="reset_absent_share",
    responses=responses(GalleryNotFound),
    dependencies=[Depends(requires("admin"))],
)
async def reset_absent_share(lease: LeaseOf) -> schemas.OperatorDecision:
    """Reset the gallery's share of absent queries to the share in its configuration."""
    persisted = await lease.engine.decide_as_operator(lambda now: now.with_share(None))
    return _operator_decision(lease, (), persisted=persisted)


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
    return _operator_decision(lease, alarmed, persisted=persisted)


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
    calibration, state = lease.bundle.retriever.calibration, lease.absent_share
    point, reason = None, None
    if calibration is not None and state is not None:
        share = state.used if expected_absent is None else expected_absent
        point, reason = calibration.promises(share, source, order).at(max_error)
    return schemas.OperatingPointAnswer(max_error=max_error, point=point, reason=reason)


def gallery_detail(lease: Lease, settings: Settings) -> schemas.GalleryDetail:
    """One gallery."""
    bundle = lease.bundle
    manifest, labels = bundle.manifest, bundle.retriever.gallery.held_labels
    return schemas.GalleryDetail(
        name=bundle.name,
        title="" if bundle.entry is None else bundle.entry.title,
        description=bundle.description,
        created_at=None if bundle.entry is None else bundle.entry.created_at,
        n_items=bundle.retriever.gallery.n_items,
        n_labels=len(labels),
        labels=heapq.nsmallest(N_LABELS, labels),
        bundle=answers.bundle_state(lease),
        encoder=answers.encoder_state(bundle),
        text=_text_state(lease),
        calibration=None if manifest.calibration is None else dict(manifest.calibration),
        metrics=None if manifest.metrics is None else dict(manifest.metrics),
        outcome=lease.engine.outcome,
        samples=[
            schemas.Sample(
                id=sample.id,
                caption=sample.caption,
                belongs=sample.belongs,
                image_url=(url := f"{answers.gallery_url(bundle)}/samples/{quote(sample.id)}"),
                thumbnail_url=f"{url}?size=thumbnail",
            )
            for sample in manifest.samples
        ],
        record_url=settings.record_urls.get(bundle.name),
        image_origins=list(settings.image_origins),
    )


def _text_state(lease: Lease) -> schemas.TextState | None:
    text = lease.bundle.retriever.text
    if text is None:
        return None
    return schemas.TextState(
        fingerprint=text.fingerprint,
        context_length=text.context_length,
        posterior=text.metadata.posterior,
        calibration=answers.bundle_state(lease.for_kind("text")).calibration,
    )


def _facet_list(bundle: Bundle, most: int) -> schemas.FacetList:
    """Describe the indexed fields of the items, with at most ``most`` values for each field."""
    facets = bundle.retriever.gallery.facets(most)
    return schemas.FacetList(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        facets=facets or [],
        reason=message("fields_not_counted") if facets is None else None,
    )


def _label_list(lease: Lease, after: str | None, limit: int) -> schemas.LabelList:
    """Return at most ``limit`` labels after the label ``after``, in alphabetical order."""
    bundle = lease.bundle
    labels = sorted(bundle.retriever.gallery.held_labels)
    start = 0 if after is None else bisect_right(labels, after)
    shown = labels[start : start + limit]
    return schemas.LabelList(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        n_labels=len(labels),
        labels=shown,
        next_after=shown[-1] if start + limit < len(labels) else None,
    )


def _calibration_report(
    lease: Lease, feedback: FeedbackSummary | None, order: Order | None, *, with_curve: bool = True
) -> schemas.CalibrationReport:
    """Describe the calibration for result lists in ``order``, and the feedback on its results."""
    calibration = lease.bundle.retriever.calibration
    state = answers.bundle_state(lease).calibration
    share = lease.absent_share
    if calibration is None or share is None:
        return _uncalibrated(state, _drift(lease))
    correction = calibration.report.get("feedback")
    measured = calibration.report["cross_fitted"]
    order = calibration.order if order is None else order
    of_first = measured["orders"][order]
    promises = calibration.promises(share.used, order=order)
    return schemas.CalibrationReport(
        status=state.status,
        n_queries=state.n_queries,
        queries=calibration.report["queries"],
        alpha=calibration.alpha,
        coverage=calibration.coverage,
        max_error=calibration.max_error,
        max_false_match_rate=calibration.max_false_match_rate,
        delta=calibration.delta,
        absent=share,
        drift=_drift(lease),
        order=order,
        sources=list(calibration.sources),
        matches=_matches(promises.matches, calibration),
        levels=[
            schemas.LevelPromise(level=name, matches=_matches(of_level, calibration))
            for name, of_level in zip(
                () if calibration.hierarchy is None else calibration.hierarchy.levels,
                promises.roll_ups,
                strict=True,
            )
        ],
        point=promises.point if promises.gives_matches else None,
        top1_ece=of_first["top1_ece"],
        reliability=[schemas.ReliabilityBin(**one) for one in of_first["reliability"]],
        risk_coverage=promises.curve() if with_curve else [],
        result_sets=[schemas.ResultSetOutcome(**one) for one in measured["result_sets"]],
        outlier_auroc=measured["outlier_auroc"],
        feedback=feedback,
        errors_over_time=_errors_over_time(lease.watch.audit),
        correction=None if correction is None else schemas.FeedbackCorrection(**correction),
        written_at=written_at(lease.bundle.directory, lease.bundle.retriever.kind),
    )


def _matches(
    promised: Sequence[MatchThreshold], calibration: Calibration
) -> list[schemas.MatchPromise]:
    """Describe the error bound for each size class of labels, such as labels with one item."""
    return [
        schemas.MatchPromise(
            size_class=promise.size_class,
            n_labels=int(n_labels),
            threshold=None if promise.point is None else promise.threshold,
            point=promise.point,
            reason=promise.shortfall,
        )
        for promise, n_labels in zip(promised, calibration.n_labels, strict=True)
        if n_labels
    ]


def _drift(lease: Lease) -> schemas.DriftReport:
    """Describe the drift tests of a gallery, without the names of callers."""
    report = lease.watch.drift.report
    return schemas.DriftReport(
        reason=report.reason,
        n_served=report.n_served,
        log_capital=report.log_capital,
        drifted=report.drifted,
        n_streams=report.n_streams,
        n_alarmed=len(report.alarmed),
    )


def _operator_decision(
    lease: Lease, alarmed: Sequence[str], *, persisted: bool
) -> schemas.OperatorDecision:
    """Describe the settings of a gallery after a decision of the operator."""
    share, operator = lease.absent_share, lease.engine.operator
    return schemas.OperatorDecision(
        gallery=lease.bundle.name,
        absent_share=DEFAULT_ABSENT if share is None else share.used,
        adopted_at=operator.adopted_at,
        alarmed=list(alarmed),
        persisted=persisted,
    )


def _uncalibrated(
    state: schemas.CalibrationState, drift: schemas.DriftReport
) -> schemas.CalibrationReport:
    """Return the report of a gallery without a calibration: most fields are null."""
    return schemas.CalibrationReport(
        status=state.status,
        n_queries=state.n_queries,
        queries=None,
        alpha=None,
        coverage=None,
        max_error=None,
        max_false_match_rate=None,
        delta=None,
        absent=None,
        drift=drift,
        order=None,
        sources=[],
        matches=[],
        levels=[],
        point=None,
        top1_ece=None,
        reliability=[],
        risk_coverage=[],
        result_sets=[],
        outlier_auroc={},
        feedback=None,
        errors_over_time=None,
        correction=None,
    )


def _errors_over_time(audit: Audit) -> schemas.ErrorsOverTime | None:
    """Describe the error rate of `match` in reviews; None if no answers are drawn for review."""
    if not audit.watches:
        return None
    test, estimate = audit.test, estimate_error(audit.reviews)
    return schemas.ErrorsOverTime(
        max_error=audit.max_error,
        audit_share=audit.share,
        n_asked=audit.n_asked,
        n_reviewed=test.n,
        n_wrong=test.n_wrong,
        error=estimate.rate,
        error_interval=estimate.interval,
        log_evidence=test.log_evidence,
        alarm=test.alarmed,
    )


bundles_router = gallery_router("bundles")


@bundles_router.get(
    "/{gallery}/bundles", operation_id="list_bundles", responses=responses(GalleryNotFound)
)
async def list_bundles(lease: LeaseOf, state: StateOf) -> schemas.BundleList:
    """List the bundles of a gallery, oldest first, with their calibrations.

    A bundle that cannot be read is listed with a reason. Old bundles are removed, so the list does
    not reach back to the first bundle.
    """
    bundle, galleries = lease.bundle, state.galleries
    refused = galleries.refused.get(bundle.name)
    return schemas.BundleList(
        serving=bundle.manifest.id,
        bundles=[
            schemas.BundleRecord.model_validate({**one.as_json(), "reason": one.reason})
            for one in await galleries.history(bundle)
        ],
        refused=refused,
    )


@bundles_router.post(
    "/{gallery}/bundles/{bundle_id}/activate",
    operation_id="activate_bundle",
    dependencies=[Depends(requires("admin"))],
    responses=responses(GalleryNotFound, BundleNotFound, ActivationRefused),
)
async def activate_bundle(gallery: str, bundle_id: str, state: StateOf) -> schemas.Activation:
    """Serve another bundle. The service first verifies the bundle with a canary query.

    Requests in progress are answered from the bundle with which they began.
    """
    return activation(gallery, await state.galleries.activate(gallery, bundle_id))


@bundles_router.post(
    "/{gallery}/bundles/rollback",
    operation_id="rollback_bundle",
    dependencies=[Depends(requires("admin"))],
    responses=responses(GalleryNotFound, BundleNotFound, ActivationRefused),
)
async def rollback_bundle(gallery: str, state: StateOf) -> schemas.Activation:
    """Serve the previous bundle again."""
    return activation(gallery, await state.galleries.rollback(gallery))


def activation(gallery: str, switched: Switched) -> schemas.Activation:
    """Describe the outcome of an activation."""
    return schemas.Activation(gallery=gallery, **asdict(switched))


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
    """Return the state of the last calibration: started over HTTP, or automatically."""
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
    if body.like is not None and not caller.limits.sees(body.like):
        raise gallery_not_found(body.like)
    await state.created.create(
        body.name,
        body.like,
        body.title,
        body.description,
        caller.limits.sees,
        caller.limits.max_galleries,
    )
    response.headers["Location"] = f"{root_path.get()}/v1/galleries/{body.name}"
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
    async with state.galleries.lease(name, record=request_record.get()) as lease:
        return gallery_detail(lease, state.settings)


def _require_allowed(caller: Caller, name: str) -> None:
    """Refuse a gallery name that the caller's key does not allow.

    Raises
    ------
    Forbidden
    """
    if not caller.limits.sees(name):
        patterns = ", ".join(caller.limits.galleries or ())
        raise Forbidden(f"The key {caller.id} is for galleries called {patterns}, not {name!r}.")


def _described(run: LastCalibration, lease: Lease) -> schemas.CalibrationRun:
    return schemas.CalibrationRun(**asdict(run), n_item_queries=n_item_queries(lease.bundle))
