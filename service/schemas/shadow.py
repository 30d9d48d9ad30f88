"""Schemas of the bundle that answers a gallery's queries in the shadow."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, Field

from model_store.verdicts import ChangeReason, Verdict
from service.schemas.requests import RequestModel

REASONS = (
    "`outlier`: one of the two takes the query for out of distribution; `first_item`: the first "
    "item is of another label, or another where items have none; `promise`: the calibration of one "
    "promises too little, or there is none; `probability`: it fell on another side of a threshold. "
    "Of several it is the first."
)


class ShadowRequest(RequestModel):
    """The bundle that is to be tried."""

    bundle_id: str = Field(max_length=100, description="As `GET …/bundles` lists it.")
    share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Of the queries with images; drawn by a hash. Left out: what the service is "
        "set to.",
    )


class CountedShare(BaseModel):
    """A share of the compared queries."""

    n: int
    share: float | None = Field(description="Null where nothing was compared.")
    interval: tuple[float, float] = Field(
        description="Exact (Clopper and Pearson), of 95 % confidence, for queries that are drawn "
        "independently."
    )


class VerdictChange(BaseModel):
    """The number of queries with two verdicts."""

    old: Verdict
    new: Verdict
    n: int


class OutlierChange(BaseModel):
    """The number of queries with two flags; null where one is not known."""

    old: bool | None
    new: bool | None
    n: int


class ReasonCount(BaseModel):
    """The number of answers that change by a reason."""

    reason: ChangeReason = Field(description=REASONS)
    n: int


class ProbabilityChange(BaseModel):
    """The match probability of the shadow's first item, less that of the answer's."""

    n: int = Field(description="Queries whose first items both have one.")
    mean: float | None
    interval: tuple[float, float] = Field(
        description="Of the mean, of 95 % confidence at any n (Maurer and Pontil)."
    )


class SaidAnswer(BaseModel):
    """The part of an answer that a caller acts on."""

    verdict: Verdict
    item_id: str | None = Field(description="Of the first item.")
    name: str | None = Field(description="Its label, or its id where it has none.")
    match_probability: float | None
    outlier: bool | None


class ChangedAnswer(BaseModel):
    """A query that the shadow answers otherwise."""

    query_id: str
    at: datetime
    reason: ChangeReason = Field(description=REASONS)
    old: SaidAnswer
    new: SaidAnswer
    image_url: str | None = Field(
        description="Of the query, where the review queue keeps its image; else null."
    )


class ShadowReport(BaseModel):
    """The answers of a bundle that is tried, beside those that callers got.

    `old` is what callers got. Counted by the process that answers, since `since`.
    """

    gallery: str
    state: Literal["running", "ended"]
    reason: str | None = Field(description="Why it ended; null while it runs.")
    bundle_id: str = Field(description="What is tried.")
    live_bundle_id: str = Field(description="What it is compared with.")
    share: float = Field(description="Of the queries with images that are drawn.")
    persisted: bool = Field(description="Whether it continues after a restart.")
    since: datetime
    ended_at: datetime | None
    n_compared: int
    n_waiting: int
    n_dropped: int = Field(description="Drawn, and not put to it: live queries came first.")
    n_failed: int = Field(description="Put to it, and not answered.")
    verdicts: list[VerdictChange]
    outliers: list[OutlierChange]
    outlier_old: CountedShare
    outlier_new: CountedShare
    same_first: CountedShare = Field(description="The first item is the same.")
    changed: CountedShare = Field(description="The verdict changes, or the first item's label.")
    reasons: list[ReasonCount]
    probability_change: ProbabilityChange
    recent: list[ChangedAnswer] = Field(
        description="Answers that change, newest first, up to 100; none once it has ended."
    )
