"""Schemas of feedback, of the review queue, and of groups of queries without a match."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, WithJsonSchema, field_validator, model_validator

from model_store.items import MAX_ID_LENGTH
from model_store.messages import CaseReason

from .base import Moment, RequestModel
from .items import ItemId, ItemWritten, Label, LabelText, Metadata

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

    The decision is compared with the match probability, and used in the next calibration.
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
        "has no match probability, or gets no feedback because the gallery has changed."
    )
    match_probability: float | None = Field(
        description="Match probability of the item in the answer to the query, at the gallery's "
        "share of absent queries. A share in the search request does not change this probability."
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
    decided_at: Moment
    undone_at: Moment | None = Field(
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
    asked_at: Moment
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
    first_asked_at: Moment
    last_asked_at: Moment
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
    n_labels: int = Field(description="Number of labels that `p_same` was learned from.")
    asked: list[AskedOn] = Field(description="Queries on each day.")
    sizes: list[GroupSize] = Field(description="Sizes of the groups, the largest first.")
    groups: list[UnknownGroup] = Field(description="The largest groups first, at most `limit`.")


class EnrolRequest(RequestModel):
    """A request to create items from the queries of a group."""

    label: LabelText = Field(description="Label of all the new items.")
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
    number: int = Field(description="Number of the reviewer's decision on the query.")


class Enrolled(BaseModel):
    """The new items from a group of queries.

    The items are stored on disk, and every later search finds them.
    """

    request_id: str = Field(description="Id of the request.")
    gallery: str
    group: str
    label: str
    items: list[EnrolledItem]


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
    kept_at: Moment
    settled_at: Moment | None


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
    until: Moment


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
