"""Schemas of shadow bundles: a bundle that answers a gallery's queries for comparison only."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from model_store.messages import ChangeReason, Verdict
from service.schemas.base import Moment, RequestModel

REASONS = (
    "`outlier`: only one of the bundles flags the query as out of distribution. `first_item`: the "
    "first items have different labels; without labels, they are different items. `promise`: only "
    "one of the calibrations guarantees what was requested. `probability`: the two match "
    "probabilities are on different sides of a threshold. If several reasons apply, only the "
    "first of these is counted."
)


class ShadowRequest(RequestModel):
    """The bundle to try as a shadow."""

    bundle_id: str = Field(max_length=100, description="Id of the bundle, from `GET …/bundles`.")
    share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of the image queries that are drawn for the shadow, by a hash. "
        "Default: the service's setting.",
    )


class CountedShare(BaseModel):
    """A number of compared queries, and their share of all compared queries."""

    n: int
    share: float | None = Field(description="Null without compared queries.")
    interval: tuple[float, float] = Field(
        description="Exact 95 % confidence interval (Clopper and Pearson), for independently "
        "drawn queries."
    )


class VerdictChange(BaseModel):
    """A pair of verdicts, and the number of queries with this pair.

    The served bundle gave the verdict `old`, and the shadow gave the verdict `new`.
    """

    old: Verdict
    new: Verdict
    n: int


class OutlierChange(BaseModel):
    """A pair of outlier flags, and the number of queries with this pair.

    The served bundle gave the flag `old`, and the shadow gave the flag `new`. A flag is null if it
    is unknown.
    """

    old: bool | None
    new: bool | None
    n: int


class ReasonCount(BaseModel):
    """The number of changed answers with one reason."""

    reason: ChangeReason = Field(description=REASONS)
    n: int


class ProbabilityChange(BaseModel):
    """The difference of the first items' match probabilities: the shadow's minus the served."""

    n: int = Field(
        description="Queries for which the first items of both answers have a match probability."
    )
    mean: float | None
    interval: tuple[float, float] = Field(
        description="95 % confidence interval of the mean, valid for any n (Maurer and Pontil)."
    )


class SaidAnswer(BaseModel):
    """The parts of an answer that decide what a caller does."""

    verdict: Verdict
    item_id: str | None = Field(description="Id of the first item.")
    name: str | None = Field(
        description="Label of the first item; the item's id if the item has no label."
    )
    match_probability: float | None
    outlier: bool | None


class ChangedAnswer(BaseModel):
    """A query that the shadow bundle answers differently."""

    query_id: str
    at: Moment
    reason: ChangeReason = Field(description=REASONS)
    old: SaidAnswer
    new: SaidAnswer
    image_url: str | None = Field(
        description="URL of the query image, if the review queue keeps it; else null."
    )


class ShadowReport(BaseModel):
    """The answers of a shadow bundle, compared with the served answers.

    `old` is the answer that the caller got. Each process counts its own queries, from `since` on.
    """

    gallery: str
    state: Literal["running", "ended"]
    reason: str | None = Field(description="Why the shadow ended; null while it runs.")
    bundle_id: str = Field(description="Id of the shadow bundle.")
    live_bundle_id: str = Field(description="Id of the served bundle.")
    share: float = Field(description="Share of the image queries that are drawn for the shadow.")
    persisted: bool = Field(
        description="Whether the shadow continues after a restart of the service."
    )
    since: Moment
    ended_at: Moment | None
    n_compared: int
    n_waiting: int
    n_dropped: int = Field(
        description="Queries that were drawn for the shadow and then dropped, because live "
        "queries have priority."
    )
    n_failed: int = Field(description="Queries that the shadow failed to answer.")
    verdicts: list[VerdictChange]
    outliers: list[OutlierChange]
    outlier_old: CountedShare
    outlier_new: CountedShare
    same_first: CountedShare = Field(description="Queries with the same first item.")
    changed: CountedShare = Field(
        description="Queries for which the verdict, or the label of the first item, differs."
    )
    reasons: list[ReasonCount]
    probability_change: ProbabilityChange
    recent: list[ChangedAnswer] = Field(
        description="Changed answers, newest first, at most 100; empty after the comparison ends."
    )
