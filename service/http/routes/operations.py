"""The paths of usage, liveness, readiness and metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from model_store.encoder.runs import Placement
from model_store.errors import Forbidden, InternalError, NotReady
from service import schemas
from service.access.access import Access, Caller, requires
from service.http.problems import responses
from service.http.routes.dependencies import StateOf
from service.http.routing import CheckedRoute
from service.observability.metrics import METRICS_MEDIA_TYPE
from service.serving.registry import Galleries


class Live(BaseModel):
    """The process runs."""

    status: Literal["live"] = "live"


class ProviderShare(BaseModel):
    """The number of encoder nodes that one execution provider ran, measured at the start."""

    nodes: int
    share: float = Field(description="Share of these nodes among all nodes that ran.")


class ReadyGallery(BaseModel):
    """A gallery that has answered a recent canary."""

    name: str
    bundle_id: str
    encoder_fingerprint: str
    provider: str = Field(description="Execution provider in use.")
    placement: dict[str, ProviderShare] | None = Field(
        description="Encoder nodes that each provider ran; null if only the CPU is available."
    )
    batch_size: int = Field(description="Maximum batch size, as measured at the start.")
    canary_ms: float = Field(description="Milliseconds to encode and search the last canary query.")
    canary_age_s: float = Field(description="Seconds since the last canary query was answered.")


class Ready(BaseModel):
    """The service can answer: every gallery has answered a recent canary query."""

    status: Literal["ready"] = "ready"
    galleries: list[ReadyGallery]
    cache: str = Field(
        description="`redis`, `redis (unreachable)`, `redis (refuses writes)` or `process`."
    )
    decoder_sandbox: list[str] = Field(
        description="Kernel features that confine the decoders: `landlock`, `seccomp`; empty if "
        "none."
    )
    processes: int = Field(
        1,
        description="Number of worker processes that answer now; VOUCH_PROCESSES sets the wanted "
        "number.",
    )


router = APIRouter(tags=["operations"], route_class=CheckedRoute)


@router.get(
    "/v1/usage",
    operation_id="get_usage",
    responses=responses(InternalError),
    dependencies=[Depends(requires("read"))],
)
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
        used = await asyncio.to_thread(state.created.n_visible, caller.limits.sees)
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


@router.get("/livez", operation_id="livez")
async def livez() -> Live:
    """Return 200 while the process runs."""
    return Live()


@router.get("/readyz", operation_id="readyz", responses=responses(NotReady, InternalError))
async def readyz(state: StateOf) -> Ready:
    """Return 200 if the service can answer queries.

    Every gallery of VOUCH_BUNDLE must have answered a recent test query (canary), and must have
    read all acknowledged changes in its bundle directory.
    """
    if state.drain.begun:
        raise NotReady("The service is stopping, and takes no new clients. Use another replica.")
    await state.galleries.require_current()
    state.galleries.require_ready()
    await state.cache.get("readyz")  # updates the state of the cache
    return _ready(state.galleries, state.cache.state, state.sandbox, state.n_workers())


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


def _ready(galleries: Galleries, cache: str, sandbox: Sequence[str], n_processes: int) -> Ready:
    """Describe each gallery in the setting `bundle`, with the age of its last canary answer."""
    now = time.monotonic()
    return Ready(
        galleries=[
            ReadyGallery(
                name=engine.bundle.name,
                bundle_id=engine.bundle.manifest.id,
                encoder_fingerprint=engine.bundle.retriever.encoder.fingerprint,
                provider=engine.bundle.retriever.encoder.provider,
                placement=_placement(engine.bundle.retriever.encoder.placement),
                batch_size=engine.batch_size,
                canary_ms=round(1000 * engine.canary_s, 3),
                canary_age_s=round(now - engine.canary_at, 3),
            )
            for engine in galleries.fixed()
        ],
        cache=cache,
        decoder_sandbox=list(sandbox),
        processes=n_processes,
    )


def _placement(placement: Placement | None) -> dict[str, ProviderShare] | None:
    if placement is None:
        return None
    return {
        provider: ProviderShare(nodes=ran.nodes, share=round(ran.share, 4))
        for provider, ran in placement.items()
    }
