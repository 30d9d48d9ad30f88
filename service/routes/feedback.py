"""What users say of matches."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from model_store.errors import (
    FeedbackNotKept,
    GalleryNotFound,
    ImageTooLarge,
    InternalError,
    InvalidRequest,
    ItemNotFound,
    QueryNotFound,
    UnsupportedMediaType,
)
from service import answers, schemas
from service.problems import responses
from service.routes.dependencies import EngineOf, StateOf
from service.uploads import JSON, body_of

router = APIRouter(prefix="/v1/galleries", tags=["feedback"], responses=responses(InternalError))


@router.post(
    "/{gallery}/feedback",
    operation_id="give_feedback",
    responses=responses(
        GalleryNotFound,
        QueryNotFound,
        ItemNotFound,
        FeedbackNotKept,
        ImageTooLarge,
        UnsupportedMediaType,
        InvalidRequest,
    ),
    dependencies=[Depends(body_of(JSON))],
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
