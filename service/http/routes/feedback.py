"""The path that takes users' feedback on matches."""

from __future__ import annotations

from fastapi import Depends

from model_store.errors import (
    FeedbackNotKept,
    GalleryNotFound,
    ImageTooLarge,
    InvalidRequest,
    ItemNotFound,
    QueryNotFound,
    UnsupportedMediaType,
)
from service import schemas
from service.access.access import requires
from service.http import answers
from service.http.bodies import JSON, body_of
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router

router = gallery_router("feedback")


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
    dependencies=[Depends(requires("write")), Depends(body_of(JSON))],
)
async def give_feedback(
    lease: LeaseOf, state: StateOf, said: schemas.FeedbackRequest
) -> schemas.FeedbackAnswer:
    """Confirm or reject a match; of each pair of query and item the last word is kept.

    `GET …/calibration` compares what was served with what users say of it. What is said of answers
    that ask for it (`audit`) tells how often a match is wrong.
    """
    kept = state.feedback
    if kept is None:
        raise FeedbackNotKept(
            "This service keeps no feedback. Its operator names a file in VOUCH_FEEDBACK."
        )
    feedback = await lease.feedback(said.query_id, said.item_id, correct=said.correct)
    await lease.engine.compute(lambda: kept.record(feedback))
    for watch in lease.engine.watches.values():
        await watch.hear()
    pair = feedback.bundle, feedback.query_id, feedback.item_id
    audited = await lease.engine.compute(lambda: kept.asked(*pair))
    return answers.feedback_answer(feedback, audited=audited)
