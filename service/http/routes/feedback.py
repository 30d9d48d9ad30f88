"""The paths of decisions on queries."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Depends, Path, Query, Request, Response

from model_store.errors import (
    DecisionNotFound,
    FeedbackNotKept,
    GalleryNotFound,
    ImageTooLarge,
    InvalidRequest,
    ItemNotFound,
    KeyReused,
    QueryNotFound,
    QuotaExceeded,
    UnsupportedMediaType,
)
from model_store.feedback import Decided, FeedbackLog
from model_store.gallery import Receipt
from service import schemas
from service.access.access import requires
from service.http.problems import responses
from service.http.routes.changes import WRITE_ERRORS, ContextOf, item_written, noted
from service.http.routes.dependencies import (
    LAST,
    After,
    LeaseOf,
    ServiceState,
    StateOf,
    gallery_router,
)
from service.http.routing import JSON, body_of
from service.serving.engine import SearchEngine
from service.serving.enrolment import item_of_query
from service.serving.lease import Lease
from service.serving.queries import ReviewerDecision
from service.serving.writer import PreparedWrites, WriteContext

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
        *WRITE_ERRORS[1:],
        KeyReused,
        QuotaExceeded,
    ),
    dependencies=[Depends(requires("review")), Depends(body_of(JSON))],
)
async def give_feedback(
    request: Request,
    response: Response,
    lease: LeaseOf,
    state: StateOf,
    context: ContextOf,
    review: schemas.FeedbackRequest,
) -> schemas.FeedbackAnswer:
    """Store a decision on a query: this item, not this item, none of these, that item, or new.

    When the request returns, the decision is on the disk. All decisions are stored; for each pair
    of query and item, the last decision counts. If several reviewers must agree, a decision counts
    only after they agree. `GET …/calibration` compares served probabilities with decisions.
    Decisions on answers with `audit` measure how often `match` is wrong. You can decide on a query
    while the query is cached, kept for review, or younger than `VOUCH_QUERY_RETENTION_S`. A
    decision ends the reviewer's lease of the query. With `new` and `item` (scope `write`), the
    service makes an item from the query's stored data. Decision and item are written together, or
    neither is written. If the service crashes before the answer, send the same request again.
    """
    kept = require_feedback(state)
    if review.item is not None:
        await requires("write")(request)
    decided, answered = await lease.review(
        ReviewerDecision(
            review.query_id, review.decided, review.item_id, review.reviewer, review.comment
        )
    )
    receipt = None
    if review.item is None:
        written = await lease.engine.compute(lambda: kept.decide(decided))
    else:
        written, receipt = await _enrol(lease, state, context, review.item, decided)
        noted(context, response, receipt)
    await lease.engine.reviews.contradict(written, answered)
    await hear(lease)
    asked = await lease.engine.compute(
        lambda: [kept.asked(written.bundle, written.query_id, p.item_id) for p in written.pairs]
    )
    pair = next((pair for pair in written.pairs if pair.item_id == written.item_id), None)
    return schemas.FeedbackAnswer(
        number=written.number,
        query_id=written.query_id,
        decision=written.decision,
        item_id=written.item_id,
        correct=None
        if written.item_id is None or written.decision == "new"
        else written.decision != "not_this_item",
        rank=None if pair is None else pair.rank,
        match_probability=None if pair is None else pair.match_probability,
        audited=any(asked),
        item=None if receipt is None else item_written(written.gallery, receipt),
    )


async def _enrol(
    lease: Lease,
    state: ServiceState,
    context: WriteContext,
    item: schemas.ItemOfQuery,
    decided: Decided,
) -> tuple[Decided, Receipt]:
    """Store a decision, and the new item that the query becomes; after an error, store neither.

    The decision is stored first: once the item is stored, a search for the query finds this item.
    """
    kept, query_id = require_feedback(state), decided.query_id
    upsert = await item_of_query(lease, query_id, item)

    async def prepared(_: SearchEngine) -> PreparedWrites:
        return PreparedWrites([upsert])

    said = replace(decided, item_id=item.id, label=item.label)
    written = await lease.engine.compute(lambda: kept.decide_once(said))
    operation = f"new {query_id} {item.model_dump_json()}"
    try:
        return written, await state.writer.enrol(lease, context, operation, prepared)
    except Exception:
        if written.decided_at == said.decided_at:  # by this request
            await lease.engine.compute(lambda: kept.undo(written.gallery, written.number))
        raise


@router.get(
    "/{gallery}/feedback",
    operation_id="list_feedback",
    responses=responses(GalleryNotFound, FeedbackNotKept, InvalidRequest),
    dependencies=[Depends(requires("review"))],
)
async def list_feedback(
    lease: LeaseOf,
    state: StateOf,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> schemas.DecisionList:
    """List the decisions on queries of a gallery, oldest first. Undone decisions are included."""
    kept, key = require_feedback(state), lease.bundle.key
    found = await lease.engine.compute(lambda: kept.decided(key, after, limit + 1))
    shown = found[:limit]
    return schemas.DecisionList(
        decisions=[_decision(one) for one in shown],
        next_after=shown[-1].number if len(found) > limit else None,
    )


@router.delete(
    "/{gallery}/feedback/{number}",
    operation_id="undo_feedback",
    responses=responses(GalleryNotFound, DecisionNotFound, FeedbackNotKept, InvalidRequest),
    dependencies=[Depends(requires("review"))],
)
async def undo_feedback(
    lease: LeaseOf, state: StateOf, number: Annotated[int, Path(ge=0, le=LAST)]
) -> schemas.Decision:
    """Undo a decision. The previous decision counts again; the list shows both decisions."""
    kept, key = require_feedback(state), lease.bundle.key
    undone = await lease.engine.compute(lambda: kept.undo(key, number))
    await hear(lease)
    return _decision(undone)


async def hear(lease: Lease) -> None:
    """Update the statistics of a gallery with new decisions."""
    for watch in lease.engine.watches.values():
        await watch.hear()


def require_feedback(state: ServiceState) -> FeedbackLog:
    """Return the store of feedback, or raise `FeedbackNotKept`."""
    if state.feedback is None:
        raise FeedbackNotKept(
            "This service stores no feedback. The service's operator can set VOUCH_FEEDBACK to a "
            "file."
        )
    return state.feedback


def _decision(kept: Decided) -> schemas.Decision:
    """Describe a decision."""
    return schemas.Decision(
        number=kept.number,
        query_id=kept.query_id,
        decision=kept.decision,
        item_id=kept.item_id,
        label=kept.label,
        reviewer=kept.reviewer,
        comment=kept.comment,
        bundle=kept.bundle,
        decided_at=datetime.fromtimestamp(kept.decided_at, UTC),
        undone_at=None if kept.undone_at is None else datetime.fromtimestamp(kept.undone_at, UTC),
        selection=kept.selection,
        draw_probability=kept.draw_probability,
    )
