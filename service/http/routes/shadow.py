"""The paths of shadow bundles."""

from __future__ import annotations

import asyncio

from fastapi import Depends

from model_store.bundles.shadow import ShadowTerms
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
from service.http import answers
from service.http.bodies import JSON, body_of
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router
from service.http.state import State
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


async def _report(lease: Lease, state: State, shadow: Shadow) -> schemas.ShadowReport:
    cases = await asyncio.to_thread(_cases, lease, shadow)
    persisted = state.shadows.is_persisted(lease.engine)
    return answers.shadow_report(lease.bundle, shadow, cases, persisted=persisted)


def _cases(lease: Lease, shadow: Shadow) -> dict[str, Case]:
    """Return the review cases of recent queries whose answer changed, by query id."""
    queue, key = lease.engine.reviews.queue, lease.bundle.key
    if queue is None:
        return {}
    found = {one.query_id: queue.find(key, one.query_id) for one in list(shadow.recent)}
    return {query_id: case for query_id, case in found.items() if case is not None}
