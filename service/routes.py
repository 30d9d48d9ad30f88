"""The paths of the service."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, File, Form, Query, Request, Response, UploadFile
from fastapi.responses import FileResponse

from model_store.errors import (
    CorruptImage,
    EmptyImage,
    FeedbackNotKept,
    GalleryNotFound,
    ImageTooLarge,
    InvalidRequest,
    ItemNotFound,
    QueryNotFound,
    SampleNotFound,
    UnsupportedImage,
)
from service import answers, schemas
from service.access import GuardedRoute, requires
from service.engine import Asked, SearchEngine
from service.problems import responses
from service.state import State
from service.telemetry import METRICS_MEDIA_TYPE

IMMUTABLE = "public, max-age=86400"
"""Thumbnails and samples belong to a bundle, and a bundle never changes."""

galleries = APIRouter(
    prefix="/v1/galleries",
    tags=["galleries"],
    route_class=GuardedRoute,
    dependencies=[Depends(requires("read"))],
)
operations = APIRouter(tags=["operations"], route_class=GuardedRoute)


def state_of(request: Request) -> State:
    """What the application was created with."""
    state: State = request.app.state.vouch
    return state


def engine_of(gallery: str, state: Annotated[State, Depends(state_of)]) -> SearchEngine:
    """The engine of the gallery in the path."""
    engine = state.engines.get(gallery)
    if engine is None:
        raise GalleryNotFound(
            f"There is no gallery {gallery!r} here. Served: {', '.join(sorted(state.engines))}."
        )
    return engine


StateOf = Annotated[State, Depends(state_of)]
EngineOf = Annotated[SearchEngine, Depends(engine_of)]

UPLOAD_ERRORS = responses(
    GalleryNotFound, EmptyImage, UnsupportedImage, ImageTooLarge, CorruptImage, InvalidRequest
)

Upload = Annotated[UploadFile, File(description="One image file: JPEG, PNG, WebP, GIF, BMP, TIFF.")]
Alpha = Annotated[
    float | None,
    Form(
        gt=0,
        lt=1,
        description="Share of ordinary queries that may be called out of distribution by "
        "mistake; left out: what the gallery was calibrated with.",
    ),
]


@galleries.get("", operation_id="list_galleries")
async def list_galleries(state: StateOf) -> schemas.GalleryList:
    """Which galleries are served."""
    return answers.gallery_list(state.engines.values())


@galleries.get("/{gallery}", operation_id="get_gallery", responses=responses(GalleryNotFound))
async def get_gallery(engine: EngineOf) -> schemas.GalleryDetail:
    """One gallery: its size, encoder, calibration, measured quality, and samples to try."""
    return answers.gallery_detail(engine)


@galleries.get(
    "/{gallery}/calibration",
    operation_id="get_calibration",
    responses=responses(GalleryNotFound),
)
async def get_calibration(engine: EngineOf, state: StateOf) -> schemas.CalibrationReport:
    """How true the probabilities are, and what each threshold on them would cost."""
    kept, bundle_id = state.feedback, engine.bundle.manifest.id
    said = None if kept is None else await engine.compute(lambda: kept.summary(bundle_id))
    return answers.calibration_report(engine, said)


@galleries.get(
    "/{gallery}/calibration/operating-points",
    operation_id="get_operating_point",
    responses=responses(GalleryNotFound, InvalidRequest),
)
async def get_operating_point(
    engine: EngineOf,
    max_error: Annotated[
        float, Query(ge=0, lt=1, description="Share of matches that may be wrong.")
    ],
) -> schemas.OperatingPointAnswer:
    """How many queries could be answered if at most so many matches may be wrong."""
    return answers.operating_point(engine.bundle, max_error)


@galleries.post(
    "/{gallery}/search",
    operation_id="search",
    responses=UPLOAD_ERRORS,
)
async def search(
    request: Request,
    engine: EngineOf,
    state: StateOf,
    image: Upload,
    limit: Annotated[int, Form(ge=1, le=100, description="How many neighbours to return.")] = 10,
    alpha: Alpha = None,
    coverage: Annotated[
        float | None,
        Form(
            gt=0,
            lt=1,
            description="Probability with which `result_set` shall hold a true match; left out: "
            "what the gallery was calibrated with.",
        ),
    ] = None,
    on_uncertain: Annotated[
        schemas.OnUncertain,
        Form(description="`refuse` leaves `results` empty unless the verdict is `match`."),
    ] = "answer",
) -> schemas.SearchAnswer:
    """Find the items most like an uploaded image, and say how sure that is.

    `curl -F image=@photo.jpg -F limit=5 http://127.0.0.1:8080/v1/galleries/digits/search`
    """
    found = await engine.search(await image.read(), Asked(limit, alpha, coverage))
    answer = answers.search_answer(engine, found, request.state.request_id, on_uncertain)
    answers.record(state.telemetry, engine, answer, found)
    return answer


@galleries.post(
    "/{gallery}/assess",
    operation_id="assess",
    responses=UPLOAD_ERRORS,
)
async def assess(
    request: Request, engine: EngineOf, image: Upload, alpha: Alpha = None
) -> schemas.AssessmentAnswer:
    """Say whether an image is worth searching with: quality, uncertainty, out of distribution.

    For a camera's preview: nothing is searched, and a search with the same bytes is a cache hit.
    """
    assessed = await engine.assess(await image.read(), alpha)
    return answers.assessment_answer(engine, assessed, request.state.request_id)


@galleries.post(
    "/{gallery}/feedback",
    operation_id="give_feedback",
    dependencies=[Depends(requires("write"))],
    responses=responses(
        GalleryNotFound, QueryNotFound, ItemNotFound, FeedbackNotKept, InvalidRequest
    ),
)
async def give_feedback(
    engine: EngineOf, state: StateOf, said: schemas.FeedbackRequest
) -> schemas.FeedbackAnswer:
    """Confirm or reject a match; of each pair of query and item the last word is kept.

    `GET …/calibration` compares what was served with what users say of it.
    """
    kept = state.feedback
    if kept is None:
        raise FeedbackNotKept(
            "This service keeps no feedback. Its operator names a file in VOUCH_FEEDBACK."
        )
    feedback = await engine.said(said.query_id, said.item_id, correct=said.correct)
    await engine.compute(lambda: kept.record(feedback))
    return answers.feedback_answer(feedback)


@galleries.get(
    "/{gallery}/items/{item_id:path}/thumbnail",
    operation_id="get_thumbnail",
    response_class=Response,
    responses={
        200: {"content": {"image/png": {}, "image/jpeg": {}}},
        **responses(GalleryNotFound, ItemNotFound),
    },
)
async def get_thumbnail(engine: EngineOf, item_id: str) -> Response:
    """A small picture of an item, re-encoded from its pixels."""
    gallery = engine.bundle.retriever.gallery
    thumbnail = await engine.compute(lambda: gallery.thumbnail(item_id))
    headers = {"Cache-Control": IMMUTABLE}
    return Response(thumbnail.data, headers=headers, media_type=thumbnail.media_type)


@galleries.get(
    "/{gallery}/items/{item_id:path}",
    operation_id="get_item",
    responses=responses(GalleryNotFound, ItemNotFound),
)
async def get_item(engine: EngineOf, item_id: str) -> schemas.ItemDetail:
    """One item of the gallery."""
    gallery = engine.bundle.retriever.gallery
    item = await engine.compute(lambda: gallery.item(item_id))
    return answers.item_detail(engine.bundle.name, item)


@galleries.get(
    "/{gallery}/samples/{sample_id}",
    operation_id="get_sample",
    response_class=Response,
    responses={200: {"content": {"image/png": {}}}, **responses(GalleryNotFound, SampleNotFound)},
)
async def get_sample(engine: EngineOf, sample_id: str) -> Response:
    """The image of a sample query."""
    bundle = engine.bundle
    for sample in bundle.manifest.samples:
        if sample.id == sample_id:
            headers = {"Cache-Control": IMMUTABLE}
            return FileResponse(bundle.directory / sample.file, headers=headers)
    raise SampleNotFound(f"The gallery {bundle.name!r} has no sample {sample_id!r}.")


@operations.get("/livez", operation_id="livez")
async def livez() -> schemas.Live:
    """Whether the process runs."""
    return schemas.Live()


@operations.get("/readyz", operation_id="readyz")
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


@operations.get(
    "/metrics",
    operation_id="metrics",
    dependencies=[Depends(requires("read"))],
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
)
async def metrics(state: StateOf) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(state.telemetry.exposition(), media_type=METRICS_MEDIA_TYPE)
