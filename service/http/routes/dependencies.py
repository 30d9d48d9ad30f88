"""The dependencies of routes: the application's state, and the gallery in the path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request
from starlette.convertors import StringConvertor, register_url_convertor

from model_store.errors import InternalError
from model_store.feedback import FeedbackLog
from model_store.gallery import read_filter
from model_store.search import Diversity
from service import schemas
from service.access.access import requires
from service.encoding.cache import Cache
from service.http.cursors import MAX_ITEMS_LENGTH
from service.http.middleware import Drain
from service.http.problems import responses
from service.http.routing import MULTIPART, CheckedRoute, ModelT, validated
from service.observability.logs import request_record
from service.observability.metrics import Telemetry
from service.serving.calibration_runs import CalibrationRuns
from service.serving.created import CreatedGalleries
from service.serving.curation import GalleryPlanes, Rankings
from service.serving.lease import Lease
from service.serving.queries import SearchParameters
from service.serving.registry import Galleries
from service.serving.shadows import Shadows
from service.serving.unknown import QueryGrouper
from service.serving.writer import ItemWriter
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The galleries, and their shared resources.

    Attributes
    ----------
    calibrations : calibrations that clients start.
    sandbox : sandbox parts that confine the decoders.
    shadows : manager of the shadow bundles.
    n_workers : function that returns the number of worker processes.
    drain : state of the drain, which begins when the service stops.
    unknown : cache of the groups of stored queries without a match.
    planes : cache of the axes of the galleries' maps.
    rankings : cache of the rankings of what checks find in the galleries.
    """

    galleries: Galleries
    created: CreatedGalleries
    calibrations: CalibrationRuns
    shadows: Shadows
    writer: ItemWriter
    cache: Cache
    telemetry: Telemetry
    feedback: FeedbackLog | None
    sandbox: tuple[str, ...]
    settings: Settings
    n_workers: Callable[[], int]
    drain: Drain
    unknown: QueryGrouper = field(default_factory=QueryGrouper)
    planes: GalleryPlanes = field(default_factory=GalleryPlanes)
    rankings: Rankings = field(default_factory=Rankings)


PageCursor = Annotated[
    str | None,
    Query(max_length=MAX_ITEMS_LENGTH, description="`next_cursor` of the previous page."),
]


class ItemPath(StringConvertor):
    """An item id in a path: may contain slashes; must not end with `/similar` or `/thumbnail`."""

    regex = "(?s:(?!.*/(?:similar|thumbnail)$).*)"


class ItemPathBefore(StringConvertor):
    """An item id in a path, before `/similar` or `/thumbnail`; may contain slashes."""

    regex = "(?s:.*)"  # Starlette's own convertor does not match line breaks


class CasePath(StringConvertor):
    """A query id in a path; fixed names such as `export` are not query ids."""

    regex = "(?!(?:export|import|leases|summary)$)[^/]+"


register_url_convertor("item", ItemPath())
register_url_convertor("item_before", ItemPathBefore())
register_url_convertor("case", CasePath())


def gallery_router(tag: str) -> APIRouter:
    """Return a router for paths below `/v1/galleries`; callers need at least the scope `read`."""
    return APIRouter(
        prefix="/v1/galleries",
        tags=[tag],
        responses=responses(InternalError),
        route_class=CheckedRoute,
        dependencies=[Depends(requires("read"))],
    )


async def state_of(request: Request) -> ServiceState:
    """Return the application's state."""
    state: ServiceState = request.app.state.vouch
    return state


StateOf = Annotated[ServiceState, Depends(state_of)]


def leased(gallery: str, request: Request) -> AbstractAsyncContextManager[Lease]:
    """Lease a gallery for a request. The request uses the same bundle until its answer."""
    state: ServiceState = request.app.state.vouch
    caller = request.scope["state"]["caller"].stream
    return state.galleries.lease(gallery, caller, request_record.get())


async def lease_of(gallery: str, request: Request) -> AsyncIterator[Lease]:
    """Yield a lease of the gallery that the path names."""
    async with leased(gallery, request) as lease:
        yield lease


def options_in_address(model: type[ModelT]) -> Callable[..., None]:
    """Return a dependency that documents query options; a `DirectRoute` reads them itself."""
    return _declared(model, Query())


def fields_of_form(model: type[ModelT]) -> Callable[..., None]:
    """Return a dependency that documents form fields; a `DirectRoute` reads them itself."""
    return _declared(model, Form(media_type=MULTIPART))


def _declared(model: type[ModelT], place: object) -> Callable[..., None]:
    def declared(sent: object) -> None:
        """Not called: FastAPI only inspects the signature."""

    declared.__annotations__["sent"] = Annotated[model, place]
    return declared


def options_of(request: Request, model: type[ModelT]) -> ModelT:
    """Read the options in the query string of a request.

    Raises
    ------
    RequestValidationError : an option is invalid.
    """
    return validated(model, request.query_params, "query")


def parameters_of(options: schemas.ListFields, request: Request | None = None) -> SearchParameters:
    """Convert the options of a request to the parameters of a search.

    Parameters
    ----------
    request : request with the caller's key, which may set a share of absent queries.

    Raises
    ------
    InvalidFilter : the filter is malformed.
    """
    where = None if options.filter is None else read_filter(options.filter)
    diversity = Diversity(options.group_by == "label", options.duplicate_similarity)
    if isinstance(options, schemas.SearchFields):
        return SearchParameters(
            options.limit,
            options.alpha,
            options.coverage,
            where,
            diversity,
            options.expected_absent,
            None if request is None else request.state.caller.expected_absent,
            options.source,
            options.filter_means,
            options.order,
        )
    return SearchParameters(options.limit, where=where, diversity=diversity)


LeaseOf = Annotated[Lease, Depends(lease_of)]

LAST = 2**63 - 1
"""The largest integer that SQLite can store."""

After = Annotated[int, Query(ge=0, le=LAST, description="`next_after` of the previous page.")]
