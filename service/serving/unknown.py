"""Groups of queries without a match, and their enrolment as items of the gallery."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from model_store.bundles.bundle import Bundle
from model_store.errors import GroupNotFound, QueryNotFound
from model_store.feedback import CaseReason, KeptQueries, ReviewQueue
from model_store.gallery import NewItem, Thumbnail, Upsert, Vector
from model_store.gallery.protocol import find_row
from model_store.identities import Group, Grouping, group_id
from model_store.identity_pairs import Points
from service.schemas import ItemOfQuery

from .lease import Lease

_GREY_PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000"
    "000a49444154789c636800000082008177cd72b60000000049454e44ae426082"
)

NO_PICTURE = Thumbnail(_GREY_PIXEL, "image/png"), b""
"""Thumbnail and preview of an item that was made from a query without a stored image."""


async def item_of_query(lease: Lease, query_id: str, item: ItemOfQuery) -> Upsert:
    """Return the write that turns a query into an item, with the query image if it was kept.

    Raises
    ------
    QueryNotFound : no embedding of the query is stored.
    """
    await lease.engine.reviews.keep()  # the query and its image may wait to be written
    engine = lease.engine
    found = await engine.once_written(query_id, lambda: engine.retained.find(query_id))
    if found is None:
        raise QueryNotFound(
            f"The embedding of the query {query_id[:12]}… is not stored, so it cannot become an "
            "item. Put the item with its image (`PUT …/items/{id}`), and decide `new` without "
            "`item`. The operator can keep queries with VOUCH_QUERY_RETENTION_S or "
            "VOUCH_REVIEW_REASONS."
        )
    embeddings, _ = found
    return Upsert(
        NewItem(item.id, item.label, item.metadata, *await picture_of_case(lease, query_id)),
        Vector(embeddings.mean[0], embeddings.variance[0], embeddings.features[0]),
    )


async def picture_of_case(lease: Lease, query_id: str) -> tuple[Thumbnail, bytes]:
    """Return an item's thumbnail and preview from the stored image of a query."""
    reviews = lease.engine.reviews
    if reviews.queue is None:
        return NO_PICTURE
    picture = await asyncio.to_thread(reviews.queue.picture, lease.bundle.key, query_id)
    if picture is None:
        return NO_PICTURE
    if reviews.terms.image == "original":
        _, thumbnail, preview = await lease.engine.encode_item(picture.data)
        return thumbnail, preview
    return Thumbnail(picture.data, picture.media_type), b""


T = TypeVar("T")

REASONS: tuple[CaseReason, ...] = ("absent", "alien")
"""Reasons of cases without a match."""

_REMEMBERED = 16
"""Maximum number of galleries whose groups are cached."""


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """A group of queries without a match.

    Attributes
    ----------
    id : see `group_id`.
    rows : rows of the members in the queries, the medoid first, then by probability.
    probabilities : probability of each member, in the order of ``rows``.
    probability : expected share of pairs of members that show the same identity.
    """

    id: str
    rows: tuple[int, ...]
    probabilities: tuple[float, ...]
    probability: float

    @classmethod
    def of(cls, group: Group, query_ids: Sequence[str]) -> NamedGroup:
        """Return a group with its id, which is made from the query ids of the members."""
        order = np.lexsort((group.rows, -group.probabilities, group.rows != group.medoid))
        rows = tuple(group.rows[order].tolist())
        name = group_id([query_ids[row] for row in rows])
        return cls(name, rows, tuple(group.probabilities[order].tolist()), group.probability)


@dataclass(frozen=True, slots=True)
class GroupedQueries:
    """The groups of a gallery's queries without a match, from the review queue.

    Attributes
    ----------
    queries : queries of open cases that are not items of the gallery.
    groups : the largest first.
    precision : expected share of pairs of queries in the same group that show the same identity.
    n_labels : number of labels from which P(same identity) was learned.
    """

    queries: KeptQueries
    groups: tuple[NamedGroup, ...]
    precision: float
    n_labels: int

    def group(self, name: str) -> NamedGroup:
        """Return a group by its id, or raise `GroupNotFound`."""
        for group in self.groups:
            if group.id == name:
                return group
        raise GroupNotFound(
            f"There is no group {name!r} of unknown queries, or its members have changed since. "
            "List the groups again with `GET …/unknown`, at the same `precision`."
        )


class QueryGrouper:
    """Groups queries without a match; caches the groups until the queries or the gallery change.

    Grouping takes seconds; it runs on a separate thread, one gallery at a time.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[object, GroupedQueries]] = OrderedDict()
        self._fitted: OrderedDict[str, tuple[object, Grouping]] = OrderedDict()
        self._turn = asyncio.Lock()

    async def of(self, bundle: Bundle, queue: ReviewQueue, precision: float) -> GroupedQueries:
        """Return the groups of a gallery.

        Parameters
        ----------
        precision : minimum precision of the groups. The precision is the expected share of pairs
            of queries in the same group that show the same identity.

        Raises
        ------
        IdentitiesUnavailable : see `Grouping.of_bundle`.
        """
        await self._turn.acquire()
        grouping = asyncio.create_task(asyncio.to_thread(self._of, bundle, queue, precision))
        # The thread holds the lock, because the thread continues after the request is cancelled.
        grouping.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(grouping)

    def _of(self, bundle: Bundle, queue: ReviewQueue, precision: float) -> GroupedQueries:
        state = bundle.state
        grouping = self._grouping(bundle, state)
        encoder = bundle.retriever.encoder.fingerprint
        kept = queue.embedded(bundle.key, encoder, REASONS)
        is_open = [
            row
            for row, query_id in enumerate(kept.query_ids)
            if kept.is_open[row] and find_row(bundle.retriever.gallery, query_id) is None
        ]
        queries = kept.at(is_open)
        key = state, precision, queries.query_ids
        known = self._known.get(bundle.key)
        if known is not None and known[0] == key:
            return known[1]
        groups: list[Group] = []
        if is_open:
            groups = grouping.groups(Points.of(queries.mean, queries.variance), precision)
        named = tuple(NamedGroup.of(group, queries.query_ids) for group in groups)
        found = GroupedQueries(queries, named, precision, grouping.n_labels)
        _remember(self._known, bundle.key, (key, found))
        return found

    def _grouping(self, bundle: Bundle, state: object) -> Grouping:
        known = self._fitted.get(bundle.key)
        if known is not None and known[0] == state:
            return known[1]
        grouping = Grouping.of_bundle(bundle)
        _remember(self._fitted, bundle.key, (state, grouping))
        return grouping


def enrolled(
    unknown: GroupedQueries,
    group: NamedGroup,
    query_ids: Sequence[str] | None,
    item_ids: Mapping[str, str],
    item: tuple[str, Mapping[str, object]],
    pictures: Mapping[str, tuple[Thumbnail, bytes]],
) -> list[Upsert]:
    """Return the writes that turn queries into items.

    Parameters
    ----------
    query_ids : members of the group to enrol; if None, all members are enrolled.
    item_ids : maps the id of a query to the id of its new item; by default, both ids are equal.
    item : label and metadata of all new items.
    pictures : thumbnail and preview, by query id.

    Raises
    ------
    GroupNotFound : one of ``query_ids`` is not in the group.
    """
    queries, (label, metadata) = unknown.queries, item
    rows = {queries.query_ids[row]: row for row in group.rows}
    unlisted = ({*item_ids} | {*(query_ids or ())}) - rows.keys()
    if unlisted:
        raise GroupNotFound(
            f"{len(unlisted)} of the queries are not in the group {group.id!r}, such as "
            f"{min(unlisted)!r}. List the groups again with `GET …/unknown`."
        )
    return [
        Upsert(
            NewItem(
                item_ids.get(name, name), label, dict(metadata), *pictures.get(name, NO_PICTURE)
            ),
            Vector(queries.mean[row], queries.variance[row], queries.features[row]),
        )
        for name, row in rows.items()
        if query_ids is None or name in query_ids
    ]


def _remember(
    known: OrderedDict[str, tuple[object, T]], name: str, found: tuple[object, T]
) -> None:
    known[name] = found
    known.move_to_end(name)
    while len(known) > _REMEMBERED:
        known.popitem(last=False)
