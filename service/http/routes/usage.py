"""The path of a caller's scope, quotas and usage."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Request

from model_store.errors import InternalError
from service import schemas
from service.access.access import Access, requires
from service.access.caller import Caller
from service.http.bounded_request import BoundedRoute
from service.http.problems import responses
from service.http.routes.dependencies import StateOf

router = APIRouter(
    prefix="/v1/usage",
    tags=["operations"],
    responses=responses(InternalError),
    route_class=BoundedRoute,
    dependencies=[Depends(requires("read"))],
)


@router.get("", operation_id="get_usage")
async def get_usage(request: Request, state: StateOf) -> schemas.Usage:
    """Return the caller's scope, galleries and quotas, and how much of each quota is used."""
    caller: Caller = request.state.caller
    access: Access = request.app.state.access
    limits, made = caller.limits, await access.count_searches(request, 0)
    searches = galleries = None
    if made is not None and limits.searches is not None:
        searches = schemas.SearchUsage(
            limit=made.limit,
            used=min(made.count, made.limit),
            period_s=limits.searches.get_expiry(),
            resets_in_s=round(made.reset_s, 1),
        )
    if limits.max_galleries is not None:
        used = await asyncio.to_thread(state.created.n_visible, caller.sees)
        galleries = schemas.GalleryUsage(limit=limits.max_galleries, used=used)
    return schemas.Usage(
        key=None if caller.name is None else caller.id,
        name=caller.name,
        scope=caller.scope,
        galleries=None if limits.galleries is None else list(limits.galleries),
        rate_limit=None if caller.rate is None else str(caller.rate),
        searches=searches,
        created_galleries=galleries,
        max_items=limits.max_items,
    )
