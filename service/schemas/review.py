"""Schemas of the review queue: queries kept for review."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from model_store.verdicts import CaseReason
from service.schemas.base import RequestModel

CaseState = Literal["open", "settled"]
ExportFormat = Literal["label_studio", "label_studio_interface", "fiftyone"]

REASONS = (
    "Why the query was kept. `ambiguous`, `absent`, `alien`: the verdict was `ambiguous`, "
    "`no_match`, `out_of_distribution`; `contradicted`: a reviewer rejected a match; `random`: "
    "drawn from all queries."
)


class FoundItem(BaseModel):
    """An item in the answer to the query."""

    id: str
    label: str | None
    match_probability: float | None
    thumbnail_url: str | None


class ReviewCase(BaseModel):
    """A query kept for review, with its answer.

    Send the decision to `POST …/feedback` with its `query_id`.
    """

    number: int
    query_id: str
    reason: CaseReason = Field(description=REASONS)
    drawn: bool = Field(description="Whether the query was drawn at random.")
    draw_probability: float | None = Field(
        description="Probability with which the query was drawn at random; higher for doubtful "
        "answers than for other answers. Null if the query was not drawn at random."
    )
    state: CaseState
    verdict: str
    found: list[FoundItem] = Field(description="The first items of the answer.")
    no_match_probability: float | None
    image_url: str | None = Field(description="Null if the service keeps no image.")
    reviewers: int = Field(
        description="Number of reviewers who must agree before the case is settled."
    )
    bundle: str = Field(description="Bundle that answered the query.")
    kept_at: datetime
    settled_at: datetime | None


class CaseList(BaseModel):
    """Cases of a gallery, oldest first."""

    cases: list[ReviewCase]
    next_after: int | None = Field(
        description="Value of `after` for the next page; null on the last page."
    )


class LeaseRequest(RequestModel):
    """A request for cases to decide on."""

    reviewer: str = Field(min_length=1, max_length=200, description="Name of the reviewer.")
    limit: int = Field(1, ge=1, le=100)
    seconds: int = Field(600, ge=1, le=86_400, description="Duration of the lease in seconds.")
    reasons: list[CaseReason] | None = Field(
        None, description="Reasons of the cases; default: any reason."
    )


class LeasedCase(BaseModel):
    """A case that is reserved for one reviewer until the time `until`."""

    case: ReviewCase
    until: datetime


class Leases(BaseModel):
    """The next cases for a reviewer; empty if there are none."""

    leases: list[LeasedCase]


class ReviewCount(BaseModel):
    """The number of cases of one reason and state."""

    reason: CaseReason
    state: CaseState
    n: int


class ReviewSummary(BaseModel):
    """The review queue of a gallery."""

    counts: list[ReviewCount]
    reasons: list[CaseReason] = Field(description="Reasons for which queries are kept.")
    image: Literal["none", "thumbnail", "original"] = Field(
        description="Version of the query image that is kept."
    )
    random_share: float = Field(
        description="Share of all queries drawn at random; queries with doubtful answers are "
        "drawn more often than other queries. 0 if `reasons` lacks `random`."
    )
    retention_s: int
    reviewers: int = Field(
        description="Number of reviewers who must agree before a decision counts."
    )


class LeaseEnded(BaseModel):
    """A released lease."""

    query_id: str
    ended: bool = Field(description="False if there was no lease.")


class CaseForgotten(BaseModel):
    """A deleted query; the decisions on the query are kept."""

    query_id: str


class ImportProblem(BaseModel):
    """An annotation that could not be imported."""

    query_id: str | None
    detail: str


class DecisionsImported(BaseModel):
    """The decisions imported from annotations."""

    n_new: int
    n_known: int = Field(description="Decisions that were already stored.")
    problems: list[ImportProblem]


LabelStudioTasks = list[dict[str, Any]]
"""Tasks as Label Studio exports them (JSON)."""
