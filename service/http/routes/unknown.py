"""The paths of groups of queries without a match."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from fastapi import Depends, Path, Query, Response

from model_store.bundles.bundle import Bundle
from model_store.errors import (
    FeedbackNotKept,
    GalleryNotFound,
    GroupNotFound,
    IdentitiesUnavailable,
    ImageTooLarge,
    InvalidRequest,
    KeyReused,
    UnsupportedMediaType,
)
from model_store.feedback import Case, Decided, moment
from model_store.identities import PRECISION
from service import schemas
from service.access.access import requires
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router
from service.http.routes.items import WRITE_ERRORS, ContextOf, noted
from service.http.routes.review import QueueOf, hear, image_url, require_feedback
from service.http.routing import JSON, body_of
from service.serving.engine import SearchEngine
from service.serving.unknown import GroupedQueries, NamedGroup, enrolled, picture_of_case
from service.serving.writer import PreparedWrites

router = gallery_router("unknown")

PrecisionOf = Annotated[
    float,
    Query(
        ge=0.5,
        le=1,
        description="Minimum for the expected share of pairs that show one identity, among all "
        "pairs of queries within groups.",
    ),
]
GROUPED = (GalleryNotFound, FeedbackNotKept, IdentitiesUnavailable, InvalidRequest)


@router.get(
    "/{gallery}/unknown",
    operation_id="list_unknown",
    responses=responses(*GROUPED),
    dependencies=[Depends(requires("review"))],
)
async def list_unknown(
    lease: LeaseOf,
    queue: QueueOf,
    state: StateOf,
    precision: PrecisionOf = PRECISION,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="Maximum number of groups in the answer.")
    ] = 50,
) -> schemas.UnknownGroups:
    """List groups of stored queries without a match. Each group is probably one new identity.

    `p_same` of a group is the expected share of pairs that show one identity, among all pairs of
    the group's queries. Vouch learns `p_same` from labels that the encoder was not trained on; each
    image of another label is embedded by a layer that was fitted without its label. If the bundle
    stores fewer than four such labels, the answer is 409. The first call after a change takes
    seconds; the result is cached until the next change. `POST …/enrol` names a group.
    """
    bundle = lease.bundle
    found = await state.unknown.of(bundle, queue, precision)
    listed = await asyncio.to_thread(queue.listed, bundle.key, {})
    cases = {case.query_id: case for case in listed}
    return _unknown_groups(bundle, found, cases, limit)


@router.post(
    "/{gallery}/unknown/{group}/enrol",
    operation_id="enrol_unknown",
    responses=responses(
        *GROUPED, *WRITE_ERRORS, GroupNotFound, ImageTooLarge, UnsupportedMediaType, KeyReused
    ),
    dependencies=[Depends(requires("write")), Depends(body_of(JSON))],
)
async def enrol_unknown(
    lease: LeaseOf,
    queue: QueueOf,
    state: StateOf,
    context: ContextOf,
    response: Response,
    group: Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="`id` of the group.")],
    asked: schemas.EnrolRequest,
    precision: PrecisionOf = PRECISION,
) -> schemas.Enrolled:
    """Name a group: its queries become items with the given label, in one transaction.

    When the call returns, the items are on the disk and every search finds them. For each query,
    the label is also stored as the reviewer's decision.
    """
    kept = require_feedback(state)

    async def found(_: SearchEngine) -> PreparedWrites:
        unknown = await state.unknown.of(lease.bundle, queue, precision)
        named = unknown.group(group)
        members = [unknown.queries.query_ids[row] for row in named.rows]
        pictures = {name: await picture_of_case(lease, name) for name in members}
        item = str(asked.label), asked.metadata
        return PreparedWrites(
            enrolled(unknown, named, asked.query_ids, asked.item_ids, item, pictures)
        )

    operation = f"enrol {group} {asked.model_dump_json()}"
    receipt = await state.writer.write(lease, context, operation, found)
    receipt = noted(context, response, receipt)
    # If this request repeats an earlier one, the service may have crashed between the transaction
    # and the decisions. Therefore the decisions are stored in any case.
    replayed = receipt.note["request_id"] != context.request_id
    query_of = {item_id: query_id for query_id, item_id in asked.item_ids.items()}
    items = []
    for one in receipt.written:
        decided = Decided(
            lease.bundle.key,
            lease.bundle.manifest.id,
            query_of.get(one.id, one.id),
            "that_item",
            one.id,
            str(asked.label),
            asked.reviewer,
            comment=None,
            pairs=(),
            decided_at=moment(),
        )
        kept_as = await asyncio.to_thread(partial(kept.decide_once, decided, replayed=replayed))
        items.append(
            schemas.EnrolledItem(
                query_id=decided.query_id,
                item_id=one.id,
                existed=one.existed,
                version=one.version,
                number=kept_as.number,
            )
        )
    await hear(lease)
    return schemas.Enrolled(
        request_id=receipt.note["request_id"],
        gallery=lease.bundle.name,
        group=group,
        label=str(asked.label),
        items=items,
    )


def _unknown_groups(
    bundle: Bundle, unknown: GroupedQueries, cases: Mapping[str, Case], limit: int
) -> schemas.UnknownGroups:
    """Describe the sizes of all groups of queries, and the members of at most ``limit`` groups.

    Parameters
    ----------
    cases : review cases, by query id; the images of the queries are in these cases.
    """
    queries, groups = unknown.queries, unknown.groups
    days = Counter(datetime.fromtimestamp(at, UTC).date() for at in queries.kept_at.tolist())
    sizes = Counter(len(group.rows) for group in groups)
    return schemas.UnknownGroups(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        n_queries=len(queries.query_ids),
        n_grouped=sum(len(group.rows) for group in groups),
        n_groups=len(groups),
        precision=unknown.precision,
        n_labels=unknown.n_labels,
        asked=[schemas.AskedOn(day=day, n=n) for day, n in sorted(days.items())],
        sizes=[
            schemas.GroupSize(size=size, n_groups=n)
            for size, n in sorted(sizes.items(), reverse=True)
        ],
        groups=[_group(bundle, unknown, group, cases) for group in groups[:limit]],
    )


def _group(
    bundle: Bundle, unknown: GroupedQueries, group: NamedGroup, cases: Mapping[str, Case]
) -> schemas.UnknownGroup:
    queries = unknown.queries
    times = queries.kept_at[list(group.rows)]
    members = []
    for row, probability in zip(group.rows, group.probabilities, strict=True):
        name = queries.query_ids[row]
        members.append(
            schemas.UnknownMember(
                query_id=name,
                p_same=probability,
                asked_at=queries.kept_at[row],
                image_url=image_url(bundle, cases.get(name)),
            )
        )
    return schemas.UnknownGroup(
        id=group.id,
        n=len(group.rows),
        p_same=group.probability,
        medoid=queries.query_ids[group.rows[0]],
        first_asked_at=times.min(),
        last_asked_at=times.max(),
        members=members,
    )
