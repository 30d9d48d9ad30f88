"""Schemas of groups of queries without a match; each group probably shows one identity."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from pydantic import BaseModel, Field, WithJsonSchema, field_validator

from model_store.item_ids import MAX_ID_LENGTH
from service.schemas.base import RequestModel
from service.schemas.changes import ItemId, LabelText, Metadata

MAX_ENROLLED = 1000

QUERY_ID = "^[0-9a-f]{64}$"
QueryId = Annotated[str, Field(pattern=QUERY_ID)]


class UnknownMember(BaseModel):
    """A query of a group."""

    query_id: str
    p_same: float = Field(
        description="Among the group's other queries, the expected share that shows the same "
        "identity as this query."
    )
    asked_at: datetime
    image_url: str | None = Field(description="Null if the service keeps no image.")


class UnknownGroup(BaseModel):
    """Queries that probably show one new identity."""

    id: str = Field(
        description="Id of this set of queries; the id changes when a member is added or removed."
    )
    n: int
    p_same: float = Field(
        description="Expected share of same-identity pairs, among all pairs of queries in the "
        "group."
    )
    medoid: str = Field(description="Id of the query with the highest `p_same`.")
    first_asked_at: datetime
    last_asked_at: datetime
    members: list[UnknownMember] = Field(
        description="First the medoid, then the other members by falling `p_same`."
    )


class AskedOn(BaseModel):
    """The number of queries without a match on one day (UTC)."""

    day: date
    n: int


class GroupSize(BaseModel):
    """The number of groups of one size."""

    size: int
    n_groups: int


class UnknownGroups(BaseModel):
    """Queries without a match, from the review queue. A group is probably one new identity."""

    gallery: str
    bundle_id: str
    n_queries: int = Field(
        description="Number of queries in the review queue that have the verdict `no_match` or "
        "`out_of_distribution`, and no reviewer decision."
    )
    n_grouped: int
    n_groups: int
    precision: float = Field(
        description="Expected share of same-identity pairs, among all pairs within groups."
    )
    n_labels: int = Field(
        description="Number of the gallery's labels that `p_same` was learned from."
    )
    asked: list[AskedOn] = Field(description="Queries on each day.")
    sizes: list[GroupSize] = Field(description="Sizes of the groups, the largest first.")
    groups: list[UnknownGroup] = Field(description="The largest groups first, at most `limit`.")


class EnrolRequest(RequestModel):
    """A request to create items from the queries of a group."""

    label: Annotated[LabelText, Field(min_length=1)] = Field(
        description="Label of all the new items."
    )
    query_ids: list[QueryId] | None = Field(
        None,
        min_length=1,
        max_length=MAX_ENROLLED,
        description="Queries of the group that become items; default: all.",
    )
    item_ids: Annotated[
        dict[QueryId, ItemId],
        WithJsonSchema(
            {
                "type": "object",
                "propertyNames": {"pattern": QUERY_ID},
                "additionalProperties": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": MAX_ID_LENGTH,
                },
                "maxProperties": MAX_ENROLLED,
            }
        ),
    ] = Field(
        {},
        max_length=MAX_ENROLLED,
        description="Id of the new item, by query id; default: the query id.",
    )
    metadata: Metadata = Field({}, description="Metadata of each new item, at most 16 KiB.")
    reviewer: str | None = Field(
        None, min_length=1, max_length=200, description="Name of the reviewer."
    )

    @field_validator("item_ids")
    @classmethod
    def _are_distinct(cls, item_ids: dict[str, str]) -> dict[str, str]:
        if len(set(item_ids.values())) != len(item_ids):
            raise ValueError("ids repeat; each item needs a different id")
        return item_ids


class EnrolledItem(BaseModel):
    """An item that was created from a query."""

    query_id: str
    item_id: str
    existed: bool = Field(description="Whether an item with this id existed before.")
    version: int = Field(description="Number of changes to the gallery so far.")


class Enrolled(BaseModel):
    """The new items from a group of queries.

    The items are stored on disk, and every later search finds them.
    """

    request_id: str = Field(description="Id of the request.")
    gallery: str
    group: str
    label: str
    items: list[EnrolledItem]
