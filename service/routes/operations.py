"""Whether the service lives, and answers."""

from __future__ import annotations

from fastapi import APIRouter, Response

from model_store.errors import InternalError
from service import schemas
from service.problems import responses
from service.routes.dependencies import StateOf
from service.telemetry import METRICS_MEDIA_TYPE

router = APIRouter(tags=["operations"])


@router.get("/livez", operation_id="livez")
async def livez() -> schemas.Live:
    """Whether the process runs."""
    return schemas.Live()


@router.get("/readyz", operation_id="readyz", responses=responses(InternalError))
async def readyz(state: StateOf) -> schemas.Ready:
    """Whether queries are answered: encodes and searches a canary in every gallery."""
    ready = [
        schemas.ReadyGallery(
            name=name,
            bundle_id=engine.bundle.manifest.id,
            provider=engine.bundle.retriever.encoder.provider,
            canary_ms=round(1000 * await engine.canary(), 3),
        )
        for name, engine in sorted(state.engines.items())
    ]
    await state.cache.get("readyz")  # its state is that of the last attempt: make one
    return schemas.Ready(galleries=ready, cache=state.cache.state)


@router.get(
    "/metrics",
    operation_id="metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, **responses(InternalError)},
)
async def metrics(state: StateOf) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(state.telemetry.exposition(), media_type=METRICS_MEDIA_TYPE)
