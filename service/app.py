"""Assembles the ASGI application from the settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.galleries import GalleryFolder
from model_store.feedback import AnsweredQueries, Bounds, FeedbackLog, ReviewQueue
from model_store.installation import installed_version
from model_store.machine import one_blas_thread
from service.access.access import Access, open_access
from service.access.hosts import AllowedHosts, KnownProxies, root_path
from service.decoding.decoder import Decoder, DecoderPool, ThreadDecoder
from service.encoding.cache import open_cache
from service.encoding.queues import BatchLimits, EncoderQueues
from service.http.documents import PageFiles, description_route, document, page_response
from service.http.middleware import (
    Admission,
    Drain,
    RequestContext,
    content_security_policy,
)
from service.http.problems import add_problem_handlers
from service.http.routes import ROUTERS
from service.http.routes.dependencies import ServiceState
from service.http.routing import Routes
from service.observability.logs import Tracing
from service.observability.metrics import Telemetry
from service.redis_calls import RedisCalls
from service.scheduling import FairShare, Threads
from service.serving.builder import CalibrateCommand
from service.serving.calibration_runs import CalibrationRuns, Recalibrator
from service.serving.created import CreatedGalleries
from service.serving.engine import EngineResources, SearchEngine
from service.serving.metrics import GalleryMetrics
from service.serving.registry import Galleries
from service.serving.reviewing import NOTHING_REVIEWED, ReviewTerms
from service.serving.served import OpenBundle, Opener
from service.serving.shadows import ReadOnlyCache, Shadows
from service.serving.writer import ItemWriter
from service.settings import Settings
from service.workers import galleries_at_once, n_workers

PAGE = Path(__file__).parent / "http" / "page"

EXPOSED_HEADERS = [
    "X-Request-Id",
    "Retry-After",
    "ETag",
    "Link",
    "Location",
    "WWW-Authenticate",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
    "Idempotency-Replayed",
]


def create_api(
    settings: Settings,
    bundles: Sequence[Bundle],
    telemetry: Telemetry,
    access: Access,
    open_more: OpenBundle,
    tracing: Tracing | None = None,
    shared: Path | None = None,
    drain: Drain | None = None,
) -> FastAPI:
    """Create the FastAPI application. At the start, it puts its resources in ``app.state.vouch``.

    The application can run only once. After the start, the application holds no reference to
    ``bundles``, so that replaced bundles can be freed.
    """
    opened = list(bundles)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if tracing is not None:
                stack.push_async_callback(tracing.close)
            stack.push_async_callback(access.close)
            app.state.vouch = await _set_up(
                stack,
                settings,
                opened,
                telemetry,
                open_more,
                shared,
                drain or Drain(),
                access.rates.calls,
            )
            opened.clear()
            with suppress(asyncio.CancelledError):  # a second stop signal cancels the wait
                yield
        del app.state.vouch

    api = FastAPIOffline(
        redoc_url=None,
        title="Vouch",
        summary="Image search that says how sure it is.",
        version=installed_version(),
        lifespan=lifespan,
    )
    api.state.access = access
    for router in ROUTERS:  # `include_router` would copy all routes, which takes 0.1 s
        api.router.routes.extend(router.routes)
    api.router.routes.insert(0, description_route(api, "/openapi.json"))
    add_problem_handlers(api)
    api.openapi = lambda: document(api)  # type: ignore[method-assign] # FastAPI's own way to do it
    api.mount("/page", PageFiles(directory=PAGE), name="page")

    @api.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return page_response(PAGE / "index.html", root_path.get(), request.headers)

    return api


def create_app(
    settings: Settings,
    bundles: Sequence[Bundle],
    access: Access | None = None,
    open_more: OpenBundle | None = None,
    shared: Path | None = None,
    drain: Drain | None = None,
) -> ASGIApp:
    """Create the ASGI application with all its layers.

    CORS is an outer layer, so that browsers can also read error responses.

    Parameters
    ----------
    bundles : bundles served at the start.
    access : access control; by default from the settings.
    open_more : opens the bundles that are activated later; by default in this process.
    shared : directory of the workers' Prometheus counters; None for a single process.
    drain : state of the drain, which begins when the service stops.
    """
    telemetry, drain = Telemetry(shared), drain or Drain()
    tracing = _open_tracing(settings)
    access = access or open_access(settings)
    open_more = open_more or open_bundle
    api = create_api(settings, bundles, telemetry, access, open_more, tracing, shared, drain)
    admission = Admission(
        Routes(api),
        telemetry,
        settings.max_in_flight,
        settings.deadline_s,
        access.account_of,
    )
    # Without keys, host names are checked, so that web pages cannot use DNS rebinding.
    any_host = access.keyless != "admin" and not settings.allowed_hosts
    app: ASGIApp = RequestContext(
        admission,
        telemetry,
        settings.max_image_bytes,
        settings.max_batch_bytes,
        hosts=AllowedHosts(None if any_host else settings.allowed_hosts),
        min_upload_rate=settings.min_upload_bytes_per_s,
        for_other_origins=bool(settings.cors_origins),
        policy=content_security_policy(settings.image_origins, settings.frame_ancestors),
        tracing=tracing,
        drain=drain,
    )
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
            allow_private_network=True,  # a public page may call a service in a private network
        )
    return KnownProxies(app, settings.trusted_proxies, settings.root_path)


def _open_tracing(settings: Settings) -> Tracing | None:
    if settings.otlp_endpoint is None:
        return None
    from service.observability.tracing import OtlpTracing  # noqa: PLC0415 - OpenTelemetry is an extra

    return OtlpTracing(settings.otlp_endpoint, settings.secrets_dir)


def _kept_queries(
    settings: Settings,
) -> tuple[AnsweredQueries | None, ReviewQueue | None, ReviewTerms]:
    """Return the store of answered queries, the review queue, and the rules of this queue."""
    file, retention_s = settings.feedback, settings.query_retention_s
    if file is None or not (retention_s or settings.review_reasons):
        return None, None, NOTHING_REVIEWED
    answered = AnsweredQueries(file, retention_s)
    if not settings.review_reasons:
        return answered, None, NOTHING_REVIEWED
    bounds = Bounds(
        settings.review_retention_s, settings.review_cases, settings.review_bytes, retention_s
    )
    terms = ReviewTerms(settings.review_reasons, settings.review_image, settings.reviewers)
    return answered, ReviewQueue(file, bounds), terms


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel an endless task, and wait until it has released its resources."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _galleries(
    settings: Settings, resources: EngineResources, open_more: OpenBundle
) -> tuple[Galleries, CreatedGalleries]:
    """Return an empty registry of galleries, and the manager that creates galleries in it."""
    folder = None
    if settings.galleries is not None:
        folder = GalleryFolder(settings.galleries, settings.max_galleries)
    galleries = Galleries(
        open_more,
        lambda bundle: SearchEngine.start(bundle, resources),
        settings.canary_period_s,
        resources.telemetry.activation,
        settings.compact_after,
        settings.keep_bundles,
        settings.signing,
        folder,
        galleries_at_once(settings.open_galleries, settings.max_connections),
    )
    return galleries, CreatedGalleries(galleries, folder, settings.signing)


def _shadows(settings: Settings, resources: EngineResources, open_more: OpenBundle) -> Shadows:
    """Return the manager of shadow bundles.

    A shadow's engine stores no queries. Shadows share all other resources with the served engines.
    """
    keeping_nothing = replace(
        resources,
        cache=ReadOnlyCache(resources.cache),
        feedback=None,
        answered=None,
        reviews=None,
        review_terms=NOTHING_REVIEWED,
    )
    return Shadows(
        Opener(open_more, lambda bundle: SearchEngine.start(bundle, keeping_nothing)),
        resources.telemetry,
        lambda: resources.threads.share.is_idle and resources.queues.is_idle,
        settings.canary_period_s,
    )


async def _calibration_runs(
    stack: AsyncExitStack, settings: Settings, galleries: Galleries
) -> CalibrationRuns:
    """Return the calibrations of the service; refit stale calibrations, if that is wanted."""
    command = CalibrateCommand(None, settings.signing, settings.feedback)
    runs = CalibrationRuns(galleries, command)
    stack.push_async_callback(runs.close)
    if settings.recalibrate:
        watching = Recalibrator(runs, settings.canary_period_s).watch(galleries.engines)
        stack.push_async_callback(_ended, asyncio.create_task(watching))
    return runs


async def _decoder(
    stack: AsyncExitStack, settings: Settings, threads: ThreadPoolExecutor, telemetry: Telemetry
) -> Decoder:
    """Start the image decoder: processes, or threads if `decoders` is 0."""
    if not settings.decoders:
        return ThreadDecoder(threads, settings.image_limits)
    return await stack.enter_async_context(
        DecoderPool(
            settings.decoders,
            settings.image_limits,
            settings.decoding_budget,
            telemetry.decoders_lost.inc,
            settings.decoder_sandbox,
        )
    )


async def _set_up(
    stack: AsyncExitStack,
    settings: Settings,
    bundles: Sequence[Bundle],
    telemetry: Telemetry,
    open_more: OpenBundle,
    shared: Path | None,
    drain: Drain,
    counting: RedisCalls,
) -> ServiceState:
    """Start the resources of the routes; ``stack`` closes them in reverse order."""
    stack.enter_context(one_blas_thread())
    threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="search")
    stack.enter_context(threads)
    cache = open_cache(settings, counting)
    stack.push_async_callback(cache.close)
    decoder = await _decoder(stack, settings, threads, telemetry)
    share = FairShare(settings.workers)
    feedback = None if settings.feedback is None else FeedbackLog(settings.feedback)
    resources = EngineResources(
        cache,
        decoder,
        Threads(threads, share),
        telemetry,
        BatchLimits.of(settings),
        feedback,
        settings.audit_share,
        settings.on_drift,
        *_kept_queries(settings),
        EncoderQueues([share, *decoder.shares]),
    )
    galleries, created = _galleries(settings, resources, open_more)
    stack.push_async_callback(galleries.close)
    stack.push_async_callback(created.close)
    shadows = _shadows(settings, resources, open_more)
    stack.push_async_callback(shadows.close)
    for bundle in bundles:
        await galleries.add(bundle)
    period_s = settings.canary_period_s
    metrics = GalleryMetrics(galleries, cache, period_s, partial(n_workers, shared))
    telemetry.exposed.register(metrics)
    stack.callback(telemetry.exposed.unregister, metrics)
    for watching in (
        galleries.watch(),
        created.clean_up(),
        shadows.watch(galleries.engines),
    ):
        stack.push_async_callback(_ended, asyncio.create_task(watching))
    runs = await _calibration_runs(stack, settings, galleries)
    writer = ItemWriter(galleries, telemetry)
    return ServiceState(
        galleries,
        created,
        runs,
        shadows,
        writer,
        cache,
        telemetry,
        feedback,
        decoder.sandbox,
        settings,
        partial(n_workers, shared),
        drain,
    )
