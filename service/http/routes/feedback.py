"""The paths of decisions on queries."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from model_store.errors import (
    DecisionNotFound,
    FeedbackNotKept,
    GalleryNotFound,
    ImageTooLarge,
    InvalidRequest,
    ItemNotFound,
    QueryNotFound,
    UnsupportedMediaType,
)
from model_store.feedback import FeedbackLog
from service import schemas
from service.access.access import requires
from service.http import answers
from service.http.bodies import JSON, body_of
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router
from service.http.state import State
from service.serving.lease import Lease
from service.serving.queries import Review

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
    dependencies=[Depends(requires("review")), Depends(body_of(JSON))],
)
async def give_feedback(
    lease: LeaseOf, state: StateOf, review: schemas.FeedbackRequest
) -> schemas.FeedbackAnswer:
    """Decide on a query: it is this item, not this item, none of these, that item, or new.

    On return it is on the disk. Of each pair of query and item the last word counts, every decision
    is kept. `GET …/calibration` compares what was served with what users say of it. What is said of
    answers that ask for it (`audit`) tells how often a match is wrong. A query is known for as long
    as it is cached, or for `VOUCH_QUERY_RETENTION_S`, or under review. A decision ends its
    reviewer's lease of the query; where several reviewers have to agree, it counts once they do.
    """
    kept = require_feedback(state)
    decided, answered = await lease.review(
        Review(review.query_id, review.decided, review.item_id, review.reviewer, review.comment)
    )
    written = await lease.engine.compute(lambda: kept.decide(decided))
    await lease.engine.reviews.contradict(written, answered)
    await hear(lease)
    asked = await lease.engine.compute(
        lambda: [kept.asked(written.bundle, written.query_id, p.item_id) for p in written.pairs]
    )
    return answers.feedback_answer(written, audited=any(asked))


@router.get(
    "/{gallery}/feedback",
    operation_id="list_feedback",
    responses=responses(GalleryNotFound, FeedbackNotKept, InvalidRequest),
    dependencies=[Depends(requires("review"))],
)
async def list_feedback(
    lease: LeaseOf,
    state: StateOf,
    after: Annotated[int, Query(ge=0, description="`next_after` of the page before.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> schemas.DecisionList:
    """The decisions on a gallery, oldest first, those that were taken back among them."""
    kept, key = require_feedback(state), lease.bundle.key
    found = await lease.engine.compute(lambda: kept.decided(key, after, limit + 1))
    return answers.decision_list(found, limit)


@router.delete(
    "/{gallery}/feedback/{number}",
    operation_id="undo_feedback",
    responses=responses(GalleryNotFound, DecisionNotFound, FeedbackNotKept, InvalidRequest),
    dependencies=[Depends(requires("review"))],
)
async def undo_feedback(lease: LeaseOf, state: StateOf, number: int) -> schemas.Decision:
    """Take a decision back; what was said before it counts again. It stays in the list."""
    kept, key = require_feedback(state), lease.bundle.key
    undone = await lease.engine.compute(lambda: kept.undo(key, number))
    await hear(lease)
    return answers.decision(undone)


async def hear(lease: Lease) -> None:
    """Let the statistics of a gallery hear what was said."""
    for watch in lease.engine.watches.values():
        await watch.hear()


def require_feedback(state: State) -> FeedbackLog:
    """Return what keeps feedback, or raise `FeedbackNotKept`."""
    if state.feedback is None:
        raise FeedbackNotKept(
            "This service keeps no feedback. Its operator names a file in VOUCH_FEEDBACK."
        )
    return state.feedback
