"""The paths of liveness, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from model_store.errors import Forbidden, InternalError, NotReady
from service import schemas
from service.access.access import requires
from service.access.caller import Caller
from service.http import answers
from service.http.bounded_request import BoundedRoute
from service.http.problems import responses
from service.http.routes.dependencies import StateOf
from service.observability.metrics import METRICS_MEDIA_TYPE

router = APIRouter(tags=["operations"], route_class=BoundedRoute)


@router.get("/livez", operation_id="livez")
async def livez() -> schemas.Live:
    """Return 200 while the process runs."""
    return schemas.Live()


@router.get("/readyz", operation_id="readyz", responses=responses(NotReady, InternalError))
async def readyz(state: StateOf) -> schemas.Ready:
    """Return 200 if the service can answer queries.

    Every gallery must have answered a recent test query (canary), and must have read all
    acknowledged changes in its bundle directory.
    """
    if state.drain.begun:
        raise NotReady("The service is stopping, and takes no new clients. Use another replica.")
    await state.galleries.require_current()
    state.galleries.require_ready()
    await state.cache.get("readyz")  # updates the state of the cache
    return answers.ready(state.galleries, state.cache.state, state.sandbox, state.n_workers())


@router.get(
    "/metrics",
    operation_id="metrics",
    dependencies=[Depends(requires("read"))],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **responses(InternalError, Forbidden)},
)
async def metrics(request: Request, state: StateOf) -> Response:
    """Return metrics in Prometheus' text format; the caller's key must allow all galleries."""
    caller: Caller = request.state.caller
    if caller.limits.galleries is not None:
        raise Forbidden(
            f"Metrics describe all galleries, but the key {caller.id} allows only some galleries. "
            "Ask the service's operator for a key without --galleries."
        )
    return Response(state.telemetry.exposition(), media_type=METRICS_MEDIA_TYPE)
