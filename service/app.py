"""The application: everything that was decided elsewhere, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from model_store.feedback import FeedbackLog
from model_store.retriever import Bundle
from service.cache import open_cache
from service.engine import SearchEngine
from service.middleware import RequestContext
from service.openapi import document
from service.problems import add_problem_handlers
from service.routes import galleries, operations
from service.settings import Settings
from service.state import State
from service.telemetry import Telemetry

PAGE = Path(__file__).parent / "page"

EXPOSED_HEADERS = ["X-Request-Id", "Retry-After", "ETag"]


def create_api(settings: Settings, bundles: Sequence[Bundle], telemetry: Telemetry) -> FastAPI:
    """The routes, with what they work on in ``app.state.vouch`` while the application runs."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        cache = open_cache(settings)
        with ThreadPoolExecutor(settings.workers, thread_name_prefix="search") as executor:
            engines = {
                bundle.name: SearchEngine(bundle, cache, executor, settings.image_limits)
                for bundle in bundles
            }
            feedback = None if settings.feedback is None else FeedbackLog(settings.feedback)
            app.state.vouch = State(engines, cache, telemetry, feedback)
            for engine in engines.values():
                await engine.canary()
            yield
            await cache.close()

    api = FastAPIOffline(
        redoc_url=None,
        title="Vouch",
        summary="Image search that says how sure it is.",
        version=version("vouch"),
        lifespan=lifespan,
    )
    api.include_router(galleries)
    api.include_router(operations)
    add_problem_handlers(api)
    api.openapi = lambda: document(api)  # type: ignore[method-assign] # FastAPI's own way to do it
    api.mount("/page", StaticFiles(directory=PAGE), name="page")

    @api.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    return api


def create_app(settings: Settings, bundles: Sequence[Bundle]) -> ASGIApp:
    """The whole application.

    CORS lies around everything, or a browser could not read the answer of a failed request.
    """
    telemetry = Telemetry()
    api = create_api(settings, bundles, telemetry)
    app: ASGIApp = RequestContext(api, telemetry, settings.max_image_bytes)
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    return app
