"""Schemas of users' feedback on matches."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from service.schemas.base import RequestModel
from service.schemas.changes import ItemId, ItemWritten, Label, Metadata

DecisionKind = Literal["this_item", "not_this_item", "none_of_these", "that_item", "new"]


Selection = Literal["volunteered", "ordered", "drawn"]


class ItemOfQuery(RequestModel):
    """The item that a query becomes."""

    id: ItemId
    label: Label = None
    metadata: Metadata = Field({}, description="Your own JSON object, at most 16 KiB.")


class FeedbackRequest(RequestModel):
    """A reviewer's decision on an earlier query; `correct` is a short form of `decision`."""

    query_id: str = Field(pattern="^[0-9a-f]{64}$", description="`query.id` of an answer.")
    decision: DecisionKind | None = Field(
        None,
        description="`this_item`: an item in the answer is a match. `not_this_item`: an item in "
        "the answer is not a match. `that_item`: any item of the gallery is the match. "
        "`none_of_these`: no item of the gallery matches. `new`: no item matches, and the gallery "
        "should get a new item.",
    )
    item_id: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="Id of the item. Omit `item_id` if the decision is `none_of_these` or `new`.",
    )
    correct: bool | None = Field(
        None,
        description="In place of `decision`: true means `this_item`, false means `not_this_item`.",
    )
    reviewer: str | None = Field(
        None, min_length=1, max_length=200, description="Name of the reviewer."
    )
    comment: str | None = Field(None, min_length=1, max_length=2000)
    item: ItemOfQuery | None = Field(
        None,
        description="Item to create from the query in the same request. Only for the decision "
        "`new`; needs scope `write`.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.decision is None) == (self.correct is None):
            raise ValueError("give either `decision` or `correct`")
        if (self.item_id is None) != (self.decision in {"none_of_these", "new"}):
            raise ValueError("give `item_id`, but not with `none_of_these` or `new`")
        if self.item is not None and self.decision != "new":
            raise ValueError("`item` needs the decision `new`: leave it out of other decisions")
        return self

    @property
    def decided(self) -> DecisionKind:
        """The decision, from `decision` or from `correct`."""
        if self.decision is not None:
            return self.decision
        return "this_item" if self.correct else "not_this_item"


class FeedbackAnswer(BaseModel):
    """The stored decision.

    The decision is compared with the served probability, and used in the next calibration.
    """

    number: int = Field(
        description="Number of the decision; `DELETE …/feedback/{number}` undoes it."
    )
    query_id: str
    decision: DecisionKind
    item_id: str | None
    correct: bool | None = Field(
        description="Whether the item is a match; null if the decision names no item of the "
        "gallery."
    )
    rank: int | None = Field(
        description="Rank of the item among the candidates; null if the item is not a candidate, "
        "or has no match probability."
    )
    match_probability: float | None = Field(
        description="Match probability that was served for the item."
    )
    audited: bool = Field(
        description="Whether the answer was drawn at random for review. If so, this feedback "
        "counts in `errors_over_time` of `GET …/calibration`."
    )
    item: ItemWritten | None = Field(
        None, description="Item that was created from the query; null if no item was created."
    )


class Decision(BaseModel):
    """A stored decision."""

    number: int
    query_id: str
    decision: DecisionKind
    item_id: str | None
    label: str | None = Field(description="Label of the item at the time of the decision.")
    reviewer: str | None
    comment: str | None
    bundle: str = Field(description="Bundle that answered the query.")
    decided_at: datetime
    undone_at: datetime | None = Field(
        description="Time when the decision was undone; null if the decision is valid."
    )
    selection: Selection = Field(
        description="How the query was chosen for review. `drawn`: by the review queue, at "
        "random. `ordered`: by the review queue, because of the verdict. `volunteered`: by a "
        "user, without the review queue."
    )
    draw_probability: float | None = Field(
        None,
        description="Probability with which the query was drawn; its inverse is the weight of the "
        "decision.",
    )


class DecisionList(BaseModel):
    """Decisions on a gallery, in the order in which they were made."""

    decisions: list[Decision]
    next_after: int | None = Field(
        description="Value of `after` for the next page; null on the last page."
    )


class ErrorsOverTime(BaseModel):
    """The error rate of verdict `match`, from reviews of answers that were drawn at random.

    Doubtful matches are drawn more often than other matches, so the rate is not `n_wrong` /
    `n_reviewed`. The estimate starts from the predicted errors of all matches and corrects them by
    the reviews. Each review is weighted by the inverse of the draw probability. The interval is
    valid at any time, so you can look at the interval after each review. Estimate and interval
    assume that right and wrong matches are reviewed equally often. Check that `n_reviewed` is close
    to `n_asked`.
    """

    max_error: float = Field(description="Maximum share of wrong matches.")
    audit_share: float = Field(description="Share of the matches that are drawn for review.")
    n_asked: int = Field(description="Number of this bundle's matches that were drawn for review.")
    n_reviewed: int = Field(description="Number of drawn matches that were reviewed.")
    n_wrong: int = Field(description="Number of reviewed matches that are wrong.")
    error: float | None = Field(
        None, description="Estimate of the error rate of all matches; null without a review."
    )
    error_interval: tuple[float, float] = Field(
        description="Asymptotic 95 % confidence sequence: if the error rate is constant, all "
        "intervals over time contain the rate with a probability of 95 %. With fewer than 30 "
        "reviews, the interval is [0, 1]."
    )
    log_evidence: float = Field(
        description="Evidence in nats (an e-process) that the error rate exceeds `max_error`. At "
        "4.6, `alarm` becomes true. The probability of a false alarm is at most 1/100."
    )
    alarm: bool = Field(
        description="Whether `log_evidence` has ever reached 4.6. If so, the calibration is stale."
    )


class FeedbackCorrection(BaseModel):
    """The correction of match probabilities by users' feedback on earlier matches."""

    n: int = Field(description="Pairs with feedback.")
    confirmed: int
    n_drawn: int = Field(0, description="Pairs that were drawn at random for review.")
    n_ordered: int = Field(
        0, description="Pairs that the review queue chose because of the verdict."
    )
    n_others: int = Field(
        description="Pairs that are not used, because their probabilities come from another "
        "calibration."
    )
    applied: bool = Field(
        description="Whether probabilities are corrected. They are corrected only if the corrected "
        "probabilities predict feedback better than the uncorrected probabilities (cross-fitted)."
    )
    slope: float = Field(description="Slope on the log-odds; 1 without correction.")
    intercept: float = Field(description="Intercept on the log-odds; 0 without correction.")
    log_loss_before: float
    log_loss_after: float = Field(description="Log loss after the correction, cross-fitted.")
