"""What is said of an uploaded image."""

from __future__ import annotations

from typing import Annotated

from fastapi import File, Form, Request, UploadFile

from model_store.errors import (
    CorruptImage,
    EmptyImage,
    GalleryNotFound,
    ImageTooCostly,
    ImageTooLarge,
    InvalidRequest,
    UnsupportedImage,
)
from service import answers, schemas
from service.engine import Asked
from service.problems import responses
from service.routes.dependencies import EngineOf, StateOf, gallery_router

router = gallery_router("searching")

UPLOAD_ERRORS = responses(
    GalleryNotFound,
    EmptyImage,
    UnsupportedImage,
    ImageTooLarge,
    ImageTooCostly,
    CorruptImage,
    InvalidRequest,
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


@router.post(
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


@router.post(
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
