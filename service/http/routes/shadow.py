"""The paths of shadow bundles."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fastapi import Depends

from model_store.answers import CONFIDENCE, ComparedAnswers, Said
from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import ShadowTerms
from model_store.decision.operating import exact_interval
from model_store.errors import (
    ActivationRefused,
    BundleNotFound,
    GalleryNotFound,
    ImageTooLarge,
    InvalidRequest,
    ShadowNotFound,
    UnsupportedMediaType,
)
from model_store.feedback import Case
from service import schemas
from service.access.access import requires
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, ServiceState, StateOf, gallery_router
from service.http.routes.review import image_url
from service.http.routing import JSON, body_of
from service.serving.lease import Lease
from service.serving.shadow import Shadow

router = gallery_router("bundles")


@router.put(
    "/{gallery}/shadow",
    operation_id="start_shadow",
    responses=responses(
        GalleryNotFound,
        BundleNotFound,
        ActivationRefused,
        InvalidRequest,
        ImageTooLarge,
        UnsupportedMediaType,
    ),
    dependencies=[Depends(requires("admin")), Depends(body_of(JSON))],
)
async def start_shadow(
    lease: LeaseOf, state: StateOf, body: schemas.ShadowRequest
) -> schemas.ShadowReport:
    """Start a shadow bundle: it answers a share of the queries a second time, only for comparison.

    The shadow bundle must first answer a test query (canary). A shadow bundle receives queries only
    while the service is idle, so that live queries do not wait. The comparison continues after a
    restart, and ends when the shadow bundle is activated.
    """
    share = state.settings.shadow_share if body.share is None else body.share
    shadow = await state.shadows.start(lease.engine, ShadowTerms(body.bundle_id, share))
    return await _report(lease, state, shadow)


@router.get(
    "/{gallery}/shadow",
    operation_id="get_shadow",
    responses=responses(GalleryNotFound, ShadowNotFound),
    dependencies=[Depends(requires("admin"))],
)
async def get_shadow(lease: LeaseOf, state: StateOf) -> schemas.ShadowReport:
    """Compare the verdicts, first items and outlier flags of the shadow and the served bundle."""
    return await _report(lease, state, state.shadows.of(lease.engine))


@router.delete(
    "/{gallery}/shadow",
    operation_id="end_shadow",
    responses=responses(GalleryNotFound, ShadowNotFound),
    dependencies=[Depends(requires("admin"))],
)
async def end_shadow(lease: LeaseOf, state: StateOf) -> schemas.ShadowReport:
    """End the comparison, and return its final report."""
    return await _report(lease, state, await state.shadows.end(lease.engine))


async def _report(lease: Lease, state: ServiceState, shadow: Shadow) -> schemas.ShadowReport:
    cases = await asyncio.to_thread(_cases, lease, shadow)
    persisted = state.shadows.is_persisted(lease.engine)
    return _shadow_report(lease.bundle, shadow, cases, persisted=persisted)


def _cases(lease: Lease, shadow: Shadow) -> dict[str, Case]:
    """Return the review cases of recent queries whose answer changed, by query id."""
    queue, key = lease.engine.reviews.queue, lease.bundle.key
    if queue is None:
        return {}
    found = {one.query_id: queue.find(key, one.query_id) for one in list(shadow.recent)}
    return {query_id: case for query_id, case in found.items() if case is not None}


def _shadow_report(
    bundle: Bundle, shadow: Shadow, cases: Mapping[str, Case], *, persisted: bool
) -> schemas.ShadowReport:
    """Describe the comparison of a shadow bundle's answers with the served answers.

    Parameters
    ----------
    cases : review cases of queries with changed answers, by query id.
    """
    counted = shadow.compared
    recent = list(shadow.recent)[::-1]
    return schemas.ShadowReport(
        gallery=bundle.name,
        state="running" if shadow.ended is None else "ended",
        reason=shadow.ended,
        bundle_id=shadow.terms.bundle_id,
        live_bundle_id=shadow.live_id,
        share=shadow.terms.share,
        persisted=persisted,
        since=shadow.since,
        ended_at=shadow.ended_at,
        n_compared=counted.n,
        n_waiting=shadow.n_waiting,
        n_dropped=shadow.n["dropped"],
        n_failed=shadow.n["failed"],
        verdicts=[
            schemas.VerdictChange(old=old, new=new, n=n)
            for (old, new), n in counted.verdicts.most_common()
        ],
        outliers=[
            schemas.OutlierChange(old=old, new=new, n=n)
            for (old, new), n in counted.outliers.most_common()
        ],
        outlier_old=_share(counted, sum(n for (old, _), n in counted.outliers.items() if old)),
        outlier_new=_share(counted, sum(n for (_, new), n in counted.outliers.items() if new)),
        same_first=_share(counted, counted.n_same_first),
        changed=_share(counted, counted.n_changed),
        reasons=[
            schemas.ReasonCount(reason=reason, n=n) for reason, n in counted.reasons.most_common()
        ],
        probability_change=schemas.ProbabilityChange(
            n=counted.n_probabilities,
            mean=counted.probability_change,
            interval=counted.probability_interval(),
        ),
        recent=[
            schemas.ChangedAnswer(
                query_id=one.query_id,
                at=one.at,
                reason=one.reason,
                old=_said(one.old),
                new=_said(one.new),
                image_url=image_url(bundle, cases.get(one.query_id)),
            )
            for one in recent
        ],
    )


def _share(counted: ComparedAnswers, n: int) -> schemas.CountedShare:
    share = n / counted.n if counted.n else None
    interval = (0.0, 1.0) if share is None else exact_interval(share, counted.n, CONFIDENCE)
    return schemas.CountedShare(n=n, share=share, interval=interval)


def _said(said: Said) -> schemas.SaidAnswer:
    return schemas.SaidAnswer(
        verdict=said.verdict,
        item_id=said.item_id,
        name=said.name,
        match_probability=said.probability,
        outlier=said.outlier,
    )
