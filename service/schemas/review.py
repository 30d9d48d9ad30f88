"""Schemas of the review queue: queries kept for review."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from model_store.verdicts import CaseReason
from service.schemas.requests import RequestModel

CaseState = Literal["open", "settled"]
ExportFormat = Literal["label_studio", "label_studio_interface", "fiftyone"]

REASONS = (
    "`ambiguous`, `absent`, `alien`: the verdict was `ambiguous`, `no_match`, "
    "`out_of_distribution`; `contradicted`: a reviewer says that a match is none; `random`: drawn "
    "from all queries."
)


class FoundItem(BaseModel):
    """An item that was served for the query."""

    id: str
    label: str | None
    match_probability: float | None
    thumbnail_url: str | None


class ReviewCase(BaseModel):
    """A query kept for review, with its answer.

    Decide by `POST …/feedback` with its `query_id`.
    """

    number: int
    query_id: str
    reason: CaseReason = Field(description=REASONS)
    drawn: bool = Field(description="Whether it was drawn at random, whatever the reason.")
    draw_probability: float | None = Field(
        description="With which it was drawn: doubtful answers more often. Null where it was not."
    )
    state: CaseState
    verdict: str
    found: list[FoundItem] = Field(description="The first items of the answer.")
    no_match_probability: float | None
    image_url: str | None = Field(description="Null where no image is kept.")
    reviewers: int = Field(description="Who have to agree before it is settled.")
    bundle: str = Field(description="What answered.")
    kept_at: datetime
    settled_at: datetime | None


class CaseList(BaseModel):
    """Cases of a gallery, in the order in which they came."""

    cases: list[ReviewCase]
    next_after: int | None = Field(description="To go on with, as `after`; null: these are all.")


class LeaseRequest(RequestModel):
    """A wish for cases to decide on."""

    reviewer: str = Field(min_length=1, max_length=200, description="Who will decide.")
    limit: int = Field(1, ge=1, le=100)
    seconds: int = Field(600, ge=1, le=86_400, description="Length of the lease.")
    reasons: list[CaseReason] | None = Field(None, description="Left out: of any reason.")


class LeasedCase(BaseModel):
    """A case that other reviewers do not get until then."""

    case: ReviewCase
    until: datetime


class Leases(BaseModel):
    """The next cases for a reviewer; none: there are none for them."""

    leases: list[LeasedCase]


class ReviewCount(BaseModel):
    """The number of cases of one reason and state."""

    reason: CaseReason
    state: CaseState
    n: int


class ReviewSummary(BaseModel):
    """The review queue of a gallery."""

    counts: list[ReviewCount]
    reasons: list[CaseReason] = Field(description="For which queries are kept.")
    image: Literal["none", "thumbnail", "original"] = Field(description="What is kept of images.")
    random_share: float = Field(
        description="Share of all queries drawn at random, doubtful ones more often; 0 where "
        "`reasons` lacks `random`."
    )
    retention_s: int
    reviewers: int = Field(description="Who have to agree before a decision counts.")


class LeaseEnded(BaseModel):
    """A lease that was given back."""

    query_id: str
    ended: bool = Field(description="False where there was none.")


class CaseForgotten(BaseModel):
    """A query of which only decisions are kept, which have no image."""

    query_id: str


class ImportProblem(BaseModel):
    """An annotation that could not be taken in."""

    query_id: str | None
    detail: str


class DecisionsImported(BaseModel):
    """The decisions that annotations brought."""

    n_new: int
    n_known: int = Field(description="Taken in before, and not again.")
    problems: list[ImportProblem]


LabelStudioTasks = list[dict[str, Any]]
"""Tasks as Label Studio exports them (JSON)."""
