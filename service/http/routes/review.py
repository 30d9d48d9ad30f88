"""The paths of decisions on queries, and of the review queue."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from model_store.bundles.bundle import Bundle
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
    StorageFull,
    Unauthenticated,
    UnsupportedMediaType,
    VouchError,
    WriteError,
    WriteRefused,
)
from model_store.feedback import CASE_REASONS, Case, Decided, FeedbackLog, ReviewQueue
from model_store.gallery import Receipt
from service import schemas
from service.access.access import Caller, requires
from service.http import answers, labelling
from service.http.problems import responses
from service.http.routing import JSON, body_of
from service.serving.engine import SearchEngine
from service.serving.lease import Lease
from service.serving.queries import ReviewerDecision
from service.serving.unknown import item_of_query
from service.serving.writer import PreparedWrites, WriteContext

from .dependencies import LAST, After, LeaseOf, ServiceState, StateOf, gallery_router
from .items import REPLAYED, WRITE_ERRORS, ContextOf, item_written, noted

UNWRITTEN = (WriteRefused, StorageFull, WriteError)
"""Errors of a request that writes to the feedback file."""

feedback_router = gallery_router("feedback")


@feedback_router.post(
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
    only after they agree. `GET …/calibration` compares match probabilities with decisions.
    Decisions on answers with `audit` measure how often `match` is wrong. You can decide on a query
    while the query is cached, kept for review, or younger than `VOUCH_QUERY_RETENTION_S`. A
    decision ends the reviewer's lease of the query. With `new` and `item` (scope `write`), the
    service makes an item from the query's stored data. Decision and item are written together, or
    neither is written. If the service crashes before the answer, send the same request again.
    """
    kept = require_feedback(state)
    if review.item is not None:
        await requires("write")(request)
    receipt, repeated = None, None
    retry = await context.retry(f"{lease.bundle.key} {review.model_dump_json()}", [])
    if retry is not None and review.item is None:
        repeated = await lease.engine.compute(lambda: kept.of_request(lease.bundle.key, retry))
    if repeated is not None:  # its query may no longer be stored
        written = repeated
        response.headers[REPLAYED] = "true"
    else:
        decided, answered = await lease.review(
            ReviewerDecision(
                review.query_id, review.decided, review.item_id, review.reviewer, review.comment
            )
        )
        if review.item is None:
            written = await lease.engine.compute(lambda: kept.decide(decided, retry))
        else:
            operation = f"new {review.model_dump_json()}"
            written, receipt = await _enrol(lease, state, context, operation, review.item, decided)
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
    operation: str,
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
    try:
        return written, await state.writer.write(lease, context, operation, prepared)
    except Exception:
        if written.decided_at == said.decided_at:  # by this request
            await lease.engine.compute(lambda: kept.undo(written.gallery, written.number))
        raise


@feedback_router.get(
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


@feedback_router.delete(
    "/{gallery}/feedback/{number}",
    operation_id="undo_feedback",
    responses=responses(
        GalleryNotFound, DecisionNotFound, FeedbackNotKept, InvalidRequest, *UNWRITTEN
    ),
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
    return schemas.Decision.model_validate(kept, from_attributes=True)


router = gallery_router("review")

PRIVATE = {"Cache-Control": "no-store"}
"""Headers of answers with query images: browsers and proxies must not store the images."""

QueryId = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="`query.id` of an answer.")]


async def queue_of(request: Request, lease: LeaseOf) -> ReviewQueue:
    """Return the review queue. Queries that this process has not yet written are written first.

    Raises
    ------
    FeedbackNotKept : the service keeps no queries for review.
    Unauthenticated : the caller has no key, and the service is reachable from other machines.
    """
    caller: Caller = request.state.caller
    if caller.name is None and caller.scope != "admin":
        raise Unauthenticated(
            "A key with the scope review is needed, even if searches need no key: the queue shows "
            "other callers' images."
        )
    queue = lease.engine.reviews.queue
    if queue is None:
        raise FeedbackNotKept(
            "This service does not keep queries for review. The service's operator can set "
            "VOUCH_FEEDBACK (a file) and VOUCH_REVIEW_REASONS (kinds of queries)."
        )
    await lease.engine.reviews.keep()
    return queue


QueueOf = Annotated[ReviewQueue, Depends(queue_of)]
BY_REVIEWERS = [Depends(requires("review"))]
KEPT = (GalleryNotFound, FeedbackNotKept)
ALWAYS = (*KEPT, InvalidRequest)


@router.get(
    "/{gallery}/review",
    operation_id="list_review_cases",
    responses=responses(*ALWAYS),
    dependencies=BY_REVIEWERS,
)
async def list_review_cases(
    lease: LeaseOf,
    queue: QueueOf,
    reason: Annotated[
        schemas.CaseReason | None,
        Query(description="Reason for which a query was kept; by default all reasons."),
    ] = None,
    state: Annotated[
        schemas.CaseState | None, Query(description="State of the query; by default both states.")
    ] = None,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> schemas.CaseList:
    """List the queries kept for review, oldest first."""
    where = {} if reason is None else {"reason": reason}
    key = lease.bundle.key
    found = await asyncio.to_thread(queue.listed, key, where, state, after, limit + 1)
    shown = found[:limit]
    return schemas.CaseList(
        cases=[_review_case(lease.bundle, case) for case in shown],
        next_after=shown[-1].number if len(found) > limit else None,
    )


@router.get(
    "/{gallery}/review/summary",
    operation_id="get_review_summary",
    responses=responses(*KEPT),
    dependencies=BY_REVIEWERS,
)
async def get_review_summary(
    lease: LeaseOf, queue: QueueOf, state: StateOf
) -> schemas.ReviewSummary:
    """Count the queries in the queue by reason and state, and show the queue's settings."""
    counts = await asyncio.to_thread(queue.counts, lease.bundle.key)
    terms, settings = lease.engine.reviews.terms, state.settings
    return schemas.ReviewSummary(
        counts=[
            schemas.ReviewCount(reason=reason, state=state_of_cases, n=n)
            for (reason, state_of_cases), n in sorted(counts.items())
        ],
        reasons=list(terms.reasons),
        image=terms.image,
        random_share=settings.audit_share if "random" in terms.reasons else 0.0,
        retention_s=settings.review_retention_s,
        reviewers=terms.reviewers,
    )


@router.post(
    "/{gallery}/review/leases",
    operation_id="lease_review_cases",
    responses=responses(*ALWAYS, ImageTooLarge, UnsupportedMediaType, *UNWRITTEN),
    dependencies=[*BY_REVIEWERS, Depends(body_of(JSON))],
)
async def lease_review_cases(
    lease: LeaseOf, queue: QueueOf, wanted: schemas.LeaseRequest
) -> schemas.Leases:
    """Lease the next queries to a reviewer. Other reviewers cannot get a leased query.

    Older queries are leased first. Every second leased query comes from the random sample, until
    this sample is used up. A decision by `POST …/feedback` with the same `reviewer` ends the lease.
    If several reviewers must agree, the query is leased to further reviewers until they agree. No
    reviewer gets a query twice.
    """
    given = await asyncio.to_thread(
        queue.lease,
        lease.bundle.key,
        lease.bundle.retriever.encoder.fingerprint,
        wanted.reviewer,
        wanted.limit,
        wanted.seconds,
        wanted.reasons or CASE_REASONS,
    )
    return schemas.Leases(
        leases=[
            schemas.LeasedCase(case=_review_case(lease.bundle, one.case), until=one.until)
            for one in given
        ]
    )


@router.get(
    "/{gallery}/review/export",
    operation_id="export_review_cases",
    response_class=Response,
    responses={
        200: {"content": {"application/json": {}, "application/xml": {}, "application/zip": {}}},
        **responses(*ALWAYS),
    },
    dependencies=BY_REVIEWERS,
)
async def export_review_cases(
    request: Request,
    lease: LeaseOf,
    queue: QueueOf,
    to: Annotated[
        schemas.ExportFormat,
        Query(
            alias="format",
            description="`label_studio`: tasks for Label Studio (JSON). `label_studio_interface`: "
            "the labelling interface for these tasks (XML). `fiftyone`: a zip file with a "
            "`LegacyFiftyOneDataset`.",
        ),
    ],
    state: Annotated[
        schemas.CaseState | None, Query(description="State of the queries to export.")
    ] = "open",
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Response:
    """Export queries with images for a labelling tool.

    If there are more queries, the header `Link` has the address of the next part.
    """
    if to == "label_studio_interface":
        return Response(labelling.LABELLING, media_type="application/xml")
    key = lease.bundle.key
    found = await asyncio.to_thread(queue.listed, key, {}, state, after, limit + 1)
    cases = await asyncio.to_thread(_illustrated, queue, found[:limit])
    headers = dict(PRIVATE)
    if len(found) > limit:
        following = request.url.include_query_params(after=found[limit - 1].number)
        headers["Link"] = f'<{following.path}?{following.query}>; rel="next"'
    if to == "label_studio":
        return JSONResponse(labelling.label_studio(cases), headers=headers)
    packed = await asyncio.to_thread(labelling.fiftyone, cases)
    return Response(packed, headers=headers, media_type="application/zip")


@router.post(
    "/{gallery}/review/import",
    operation_id="import_decisions",
    responses=responses(*ALWAYS, ImageTooLarge, UnsupportedMediaType, *UNWRITTEN),
    dependencies=[*BY_REVIEWERS, Depends(body_of(JSON))],
)
async def import_decisions(
    lease: LeaseOf, queue: QueueOf, state: StateOf, tasks: schemas.LabelStudioTasks
) -> schemas.DecisionsImported:
    """Import the annotations of a Label Studio project (JSON export) as decisions.

    An annotation that is sent again is ignored. The answer lists annotations that cannot be
    imported; all other annotations are imported. For each annotation, the service answers the query
    again, in about 10 ms. So send at most 200 tasks in one request.
    """
    kept = require_feedback(state)
    decided: list[Decided] = []
    problems: list[schemas.ImportProblem] = []
    for one in labelling.annotated(tasks):
        if isinstance(one, schemas.ImportProblem):
            problems.append(one)
            continue
        try:
            made, _ = await lease.review(one.review)
        except WriteError:  # the reason applies to every annotation
            raise
        except VouchError as error:
            query_id = one.review.query_id
            problems.append(schemas.ImportProblem(query_id=query_id, detail=str(error)))
            continue
        case = await asyncio.to_thread(queue.find, made.gallery, made.query_id)
        made = replace(made, decided_at=one.decided_at)
        decided.append(made if case is None else case.recorded(made))
    n_new = await asyncio.to_thread(kept.bring, decided)
    await hear(lease)
    return schemas.DecisionsImported(n_new=n_new, n_known=len(decided) - n_new, problems=problems)


@router.get(
    "/{gallery}/review/{query_id:case}",
    operation_id="get_review_case",
    responses=responses(*ALWAYS, QueryNotFound),
    dependencies=BY_REVIEWERS,
)
async def get_review_case(lease: LeaseOf, queue: QueueOf, query_id: QueryId) -> schemas.ReviewCase:
    """Describe one query in the review queue."""
    case = await lease.engine.once_written(
        query_id, lambda: asyncio.to_thread(queue.find, lease.bundle.key, query_id)
    )
    if case is None:
        raise _not_kept(query_id)
    return _review_case(lease.bundle, case)


@router.get(
    "/{gallery}/review/{query_id}/image",
    operation_id="get_review_image",
    response_class=Response,
    responses={200: {"content": {"image/*": {}}}, **responses(*ALWAYS, QueryNotFound)},
    dependencies=BY_REVIEWERS,
)
async def get_review_image(lease: LeaseOf, queue: QueueOf, query_id: QueryId) -> Response:
    """Return the stored image of a query: a thumbnail or the uploaded file."""
    picture = await lease.engine.once_written(
        query_id, lambda: asyncio.to_thread(queue.picture, lease.bundle.key, query_id)
    )
    if picture is None:
        raise _not_kept(query_id)
    return Response(picture.data, headers=PRIVATE, media_type=picture.media_type)


@router.delete(
    "/{gallery}/review/{query_id}/lease",
    operation_id="end_review_lease",
    responses=responses(*ALWAYS, *UNWRITTEN),
    dependencies=BY_REVIEWERS,
)
async def end_review_lease(
    lease: LeaseOf,
    queue: QueueOf,
    query_id: QueryId,
    reviewer: Annotated[str, Query(min_length=1, max_length=200)],
) -> schemas.LeaseEnded:
    """End a lease without a decision, so that another reviewer can get the query."""
    ended = await asyncio.to_thread(queue.give_back, lease.bundle.key, query_id, reviewer)
    return schemas.LeaseEnded(query_id=query_id, ended=ended)


@router.delete(
    "/{gallery}/review/{query_id:case}",
    operation_id="forget_review_case",
    responses=responses(*ALWAYS, QueryNotFound, *UNWRITTEN),
    dependencies=[Depends(requires("write"))],
)
async def forget_review_case(
    lease: LeaseOf, queue: QueueOf, query_id: QueryId
) -> schemas.CaseForgotten:
    """Delete a query: its image, its embedding and its cache entries.

    Decisions on the query stay. A decision contains a hash of the image, but no image data.
    """
    known = await asyncio.to_thread(queue.forget, lease.bundle.key, query_id)
    await lease.engine.forget(query_id)
    if not known:
        raise _not_kept(query_id)
    return schemas.CaseForgotten(query_id=query_id)


def _illustrated(queue: ReviewQueue, cases: list[Case]) -> list[labelling.Illustrated]:
    found = ((case, queue.picture(case.gallery, case.query_id)) for case in cases)
    return [(case, picture) for case, picture in found if picture is not None]


def _not_kept(query_id: str) -> QueryNotFound:
    return QueryNotFound(
        f"The query {query_id[:12]}… or its image is not stored. `GET …/review` lists the stored "
        "queries."
    )


def _review_case(bundle: Bundle, case: Case) -> schemas.ReviewCase:
    """Describe a review case. Decisions are omitted, so that reviewers decide independently."""
    urls = answers.picture_urls(bundle)
    return schemas.ReviewCase(
        number=case.number,
        query_id=case.query_id,
        reason=case.reason,
        drawn=case.drawn,
        draw_probability=case.draw_probability,
        state="open" if case.settled_at is None else "settled",
        verdict=case.verdict,
        found=[
            schemas.FoundItem(
                id=item.item_id,
                label=item.label,
                match_probability=item.match_probability,
                thumbnail_url=urls(item.item_id)[0],
            )
            for item in case.found
        ],
        no_match_probability=case.no_match_probability,
        image_url=image_url(bundle, case),
        reviewers=case.wanted,
        bundle=case.bundle,
        kept_at=case.kept_at,
        settled_at=case.settled_at,
    )


def image_url(bundle: Bundle, case: Case | None) -> str | None:
    """Return the URL path of the image of a review case; None if no image is stored."""
    if case is None or case.media_type is None:
        return None
    return f"{answers.gallery_url(bundle)}/review/{case.query_id}/image"
