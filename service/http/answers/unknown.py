"""Answers about queries without a match in the gallery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from model_store.bundles.bundle import Bundle
from model_store.feedback import Case
from model_store.gallery import Receipt
from service import schemas
from service.http.answers.items import gallery_url
from service.serving.unknown import NamedGroup, UnknownQueries


def unknown_groups(
    bundle: Bundle, unknown: UnknownQueries, cases: Mapping[str, Case], limit: int
) -> schemas.UnknownGroups:
    """Describe the sizes of all groups of queries, and the members of at most ``limit`` groups.

    Parameters
    ----------
    cases : review cases, by query id; the images of the queries are in these cases.
    """
    queries, groups = unknown.queries, unknown.groups
    days = Counter(_moment(at).date() for at in queries.kept_at.tolist())
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
    bundle: Bundle, unknown: UnknownQueries, group: NamedGroup, cases: Mapping[str, Case]
) -> schemas.UnknownGroup:
    queries = unknown.queries
    times = queries.kept_at[list(group.rows)]
    members = []
    for row, probability in zip(group.rows, group.probabilities, strict=True):
        name = queries.query_ids[row]
        case = cases.get(name)
        image = f"{gallery_url(bundle)}/review/{name}/image"
        members.append(
            schemas.UnknownMember(
                query_id=name,
                p_same=probability,
                asked_at=_moment(float(queries.kept_at[row])),
                image_url=None if case is None or case.media_type is None else image,
            )
        )
    return schemas.UnknownGroup(
        id=group.id,
        n=len(group.rows),
        p_same=group.probability,
        medoid=queries.query_ids[group.rows[0]],
        first_asked_at=_moment(float(times.min())),
        last_asked_at=_moment(float(times.max())),
        members=members,
    )


def enrolled(
    gallery: str, group: str, asked: schemas.EnrolRequest, receipt: Receipt
) -> schemas.Enrolled:
    """Describe the new items that were created from the queries of a group."""
    query_of = {item_id: query_id for query_id, item_id in asked.item_ids.items()}
    return schemas.Enrolled(
        request_id=receipt.note["request_id"],
        gallery=gallery,
        group=group,
        label=str(asked.label),
        items=[
            schemas.EnrolledItem(
                query_id=query_of.get(one.id, one.id),
                item_id=one.id,
                existed=one.existed,
                version=one.version,
            )
            for one in receipt.written
        ],
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
