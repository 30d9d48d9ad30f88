"""Whether the service lives, and answers."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from model_store.errors import InternalError, NotReady
from service import schemas
from service.access.access import GuardedRoute, requires
from service.http import answers
from service.http.problems import responses
from service.http.routes.dependencies import StateOf
from service.observability.metrics import METRICS_MEDIA_TYPE

router = APIRouter(tags=["operations"], route_class=GuardedRoute)


@router.get("/livez", operation_id="livez")
async def livez() -> schemas.Live:
    """Whether the process runs."""
    return schemas.Live()


@router.get("/readyz", operation_id="readyz", responses=responses(NotReady, InternalError))
async def readyz(state: StateOf) -> schemas.Ready:
    """Whether queries are answered: every gallery has answered a canary lately."""
    state.galleries.require_ready()
    await state.cache.get("readyz")  # its state is that of the last attempt: make one
    return answers.ready(state.galleries, state.cache.state, state.sandbox)


@router.get(
    "/metrics",
    operation_id="metrics",
    dependencies=[Depends(requires("read"))],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **responses(InternalError)},
)
async def metrics(state: StateOf) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(state.telemetry.exposition(), media_type=METRICS_MEDIA_TYPE)
