"""Schemas of users' feedback on matches."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from service.schemas.changes import ItemId, ItemWritten, Label, Metadata
from service.schemas.requests import RequestModel

DecisionKind = Literal["this_item", "not_this_item", "none_of_these", "that_item", "new"]


Selection = Literal["volunteered", "ordered", "drawn"]


class ItemOfQuery(RequestModel):
    """The item that a query becomes."""

    id: ItemId
    label: Label = None
    metadata: Metadata = Field({}, description="A JSON object of yours, 16 KiB at most.")


class FeedbackRequest(RequestModel):
    """A reviewer's decision on an earlier query; with `correct`, short for one on an item found."""

    query_id: str = Field(pattern="^[0-9a-f]{64}$", description="`query.id` of an answer.")
    decision: DecisionKind | None = Field(
        None,
        description="`this_item`, `not_this_item`: of an item that the query found; "
        "`none_of_these`: nothing in the gallery matches; `that_item`: it is this item, found or "
        "not; `new`: nothing matches, and it ought to be in the gallery.",
    )
    item_id: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Of the item; left out with `none_of_these` and `new`.",
    )
    correct: bool | None = Field(
        None, description="In place of `decision`: true for `this_item`, false for `not_this_item`."
    )
    reviewer: str | None = Field(None, min_length=1, max_length=200, description="Who decides.")
    comment: str | None = Field(None, min_length=1, max_length=2000)
    item: ItemOfQuery | None = Field(
        None,
        description="With `new`: what the query becomes, by the same request (scope `write`).",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.decision is None) == (self.correct is None):
            raise ValueError("give `decision`, or `correct` in its place")
        if (self.item_id is None) != (self.decision in {"none_of_these", "new"}):
            raise ValueError("give `item_id`, but not with `none_of_these` or `new`")
        if self.item is not None and self.decision != "new":
            raise ValueError("`item` is what a query becomes: give it with `new` alone")
        return self

    @property
    def decided(self) -> DecisionKind:
        """The decision, however it was given."""
        if self.decision is not None:
            return self.decision
        return "this_item" if self.correct else "not_this_item"


class FeedbackAnswer(BaseModel):
    """The feedback that was stored, for checking probabilities and for the next calibration."""

    number: int = Field(description="Of the decision: `DELETE …/feedback/{number}` takes it back.")
    query_id: str
    decision: DecisionKind
    item_id: str | None
    correct: bool | None = Field(
        description="Of the item; null where none of the gallery was named."
    )
    rank: int | None = Field(description="Of the item; null where it was not found.")
    match_probability: float | None = Field(description="What was served for the pair.")
    audited: bool = Field(
        description="Whether one of its pairs was drawn at random for review, and counts in "
        "`errors_over_time` of `GET …/calibration`."
    )
    item: ItemWritten | None = Field(None, description="What the query has become, if it has.")


class Decision(BaseModel):
    """A decision that is kept."""

    number: int
    query_id: str
    decision: DecisionKind
    item_id: str | None
    label: str | None = Field(description="Of the item, at the time of the decision.")
    reviewer: str | None
    comment: str | None
    bundle: str = Field(description="What answered.")
    decided_at: datetime
    undone_at: datetime | None = Field(description="When it was taken back; null: it holds.")
    selection: Selection = Field(
        description="How the query was chosen for review: the review queue gave it, `drawn` at "
        "random or `ordered` by its verdict; or it was `volunteered`."
    )
    draw_probability: float | None = Field(
        None,
        description="With which the query was drawn; its inverse is the weight of the decision.",
    )


class DecisionList(BaseModel):
    """Decisions on a gallery, in the order in which they were made."""

    decisions: list[Decision]
    next_after: int | None = Field(description="To go on with, as `after`; null: these are all.")


class FeedbackSummary(BaseModel):
    """The served probabilities compared with users' feedback on them."""

    n: int
    probability: float = Field(description="Mean of the probabilities.")
    share: float = Field(description="Share of the pairs that users confirmed.")


class ErrorsOverTime(BaseModel):
    """The error rate of verdict `match`, from reviews of answers that were drawn at random.

    Doubtful matches are drawn more often, so that the rate is not `n_wrong` / `n_reviewed`: each
    review counts by the inverse of its probability, beside the predicted errors of all matches.
    It is valid however often it is read, if the decision to review an answer does not depend on
    whether the match is right: compare `n_reviewed` with `n_asked`.
    """

    max_error: float = Field(description="Share of matches that may be wrong.")
    audit_share: float = Field(description="Share of matches drawn for review.")
    n_asked: int = Field(description="Matches drawn, with this bundle.")
    n_reviewed: int = Field(description="Reviewed ones among them.")
    n_wrong: int = Field(description="Of them are wrong.")
    error: float | None = Field(
        None, description="Estimate of the error rate of all matches; null without a review."
    )
    error_interval: tuple[float, float] = Field(
        description="95 % confidence sequence of the error rate, if that does not change: it holds "
        "the rate at every time, for many reviews. [0, 1] below 30 reviews."
    )
    log_evidence: float = Field(
        description="Against an error rate of at most `max_error`, in nats (an e-process). At 4.6, "
        "which a rate within it ever reaches with probability 1/100 at most, `alarm` is raised."
    )
    alarm: bool = Field(
        description="Whether the evidence ever was that strong; the calibration is stale then."
    )


class FeedbackCorrection(BaseModel):
    """The change of match probabilities that users' feedback on earlier matches made."""

    n: int = Field(description="Pairs with feedback.")
    confirmed: int
    n_drawn: int = Field(0, description="Of the pairs, those drawn at random for review.")
    n_ordered: int = Field(0, description="Of the pairs, those that the review queue chose.")
    n_others: int = Field(description="Further pairs, served with other probabilities: left aside.")
    applied: bool = Field(
        description="Whether the correction predicts feedback better than none, "
        "cross-fitted; else nothing is corrected."
    )
    slope: float = Field(description="On log-odds; 1 where nothing is corrected.")
    intercept: float = Field(description="On log-odds; 0 where nothing is corrected.")
    log_loss_before: float
    log_loss_after: float = Field(description="Cross-fitted.")
