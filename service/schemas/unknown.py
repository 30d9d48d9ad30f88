"""Schemas of queries that matched nothing, in groups."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from pydantic import BaseModel, Field, WithJsonSchema, field_validator

from model_store.item_ids import MAX_ID_LENGTH
from service.schemas.changes import ItemId, LabelText, Metadata
from service.schemas.requests import RequestModel

MAX_ENROLLED = 1000

QUERY_ID = "^[0-9a-f]{64}$"
QueryId = Annotated[str, Field(pattern=QUERY_ID)]


class UnknownMember(BaseModel):
    """A query of a group."""

    query_id: str
    p_same: float = Field(
        description="Expected share of the others of its group that show what it shows."
    )
    asked_at: datetime
    image_url: str | None = Field(description="Null where no image is kept.")


class UnknownGroup(BaseModel):
    """Queries that probably show one new identity."""

    id: str = Field(description="Of these very queries: with another member it is another group.")
    n: int
    p_same: float = Field(
        description="Expected share of its pairs of queries that show the same identity."
    )
    medoid: str = Field(description="The query that the others are most surely the same as.")
    first_asked_at: datetime
    last_asked_at: datetime
    members: list[UnknownMember] = Field(description="The medoid first, then by `p_same`.")


class AskedOn(BaseModel):
    """Queries of a day (UTC) that matched nothing."""

    day: date
    n: int


class GroupSize(BaseModel):
    """Groups of a size."""

    size: int
    n_groups: int


class UnknownGroups(BaseModel):
    """The kept queries that matched nothing, grouped into probable new identities."""

    gallery: str
    bundle_id: str
    n_queries: int = Field(
        description="Kept queries with the verdict `no_match` or `out_of_distribution` without "
        "a reviewer decision."
    )
    n_grouped: int
    n_groups: int
    precision: float = Field(
        description="Share of the pairs within groups that are expected to show the same identity."
    )
    n_labels: int = Field(description="Labels of the gallery that P(same) was learned from.")
    asked: list[AskedOn] = Field(description="Days on which it was searched for.")
    sizes: list[GroupSize] = Field(description="The largest first.")
    groups: list[UnknownGroup] = Field(description="The largest first, at most `limit`.")


class EnrolRequest(RequestModel):
    """A name for a group of queries."""

    label: Annotated[LabelText, Field(min_length=1)] = Field(description="Of all of them.")
    query_ids: list[QueryId] | None = Field(
        None,
        min_length=1,
        max_length=MAX_ENROLLED,
        description="The members that become items; left out: all.",
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
        {}, max_length=MAX_ENROLLED, description="Ids of the items; left out: the query's own id."
    )
    metadata: Metadata = Field({}, description="Of each item, 16 KiB at most.")
    reviewer: str | None = Field(None, min_length=1, max_length=200, description="Who decides.")

    @field_validator("item_ids")
    @classmethod
    def _are_distinct(cls, item_ids: dict[str, str]) -> dict[str, str]:
        if len(set(item_ids.values())) != len(item_ids):
            raise ValueError("ids repeat; each item needs its own")
        return item_ids


class EnrolledItem(BaseModel):
    """An item that was a query."""

    query_id: str
    item_id: str
    existed: bool = Field(description="Whether there was an item of that id before.")
    version: int = Field(description="How many changes the gallery has seen.")


class Enrolled(BaseModel):
    """The queries of a group, which are items now: on the disk, and found by every search."""

    request_id: str = Field(description="Of the request that enrolled them.")
    gallery: str
    group: str
    label: str
    items: list[EnrolledItem]
