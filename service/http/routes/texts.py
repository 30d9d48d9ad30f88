"""The path that takes a text."""

from __future__ import annotations

from fastapi import Depends, Request

from model_store.errors import (
    GalleryNotFound,
    ImageTooLarge,
    InvalidFilter,
    InvalidText,
    TextUnavailable,
    UnsupportedMediaType,
)
from service import schemas
from service.access.access import counts_as_search
from service.http import answers
from service.http.bodies import JSON, body_of
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router, parameters_of

router = gallery_router("searching")


@router.post(
    "/{gallery}/search/text",
    operation_id="search_text",
    responses=responses(
        GalleryNotFound,
        ImageTooLarge,
        UnsupportedMediaType,
        InvalidText,
        TextUnavailable,
        InvalidFilter,
    ),
    dependencies=[Depends(counts_as_search), Depends(body_of(JSON))],
)
async def search_text(
    request: Request, lease: LeaseOf, state: StateOf, body: schemas.TextSearchRequest
) -> schemas.SearchAnswer:
    """Search with a text, if the gallery's encoder has a text tower.

    Text queries need their own calibration, with captions. Without a calibration for texts, the
    verdict is `not_calibrated`.
    """
    found = await lease.search_text(body.text, parameters_of(body, request))
    answer = answers.search_answer(lease, found, request.state.request_id, body)
    answers.record(state.telemetry, lease, answer, found)
    return answer
