"""Schemas of users' feedback on matches."""

from __future__ import annotations

from pydantic import BaseModel, Field


class FeedbackRequest(BaseModel):
    """A user's judgement whether an item is a true match of an earlier query."""

    query_id: str = Field(pattern="^[0-9a-f]{64}$", description="`query.id` of an answer.")
    item_id: str = Field(min_length=1, max_length=4096)
    correct: bool = Field(description="Confirmed, or rejected.")


class FeedbackAnswer(BaseModel):
    """The feedback that was stored, for checking probabilities and for the next calibration."""

    query_id: str
    item_id: str
    correct: bool
    rank: int
    match_probability: float = Field(description="What was served for the pair.")
    audited: bool = Field(
        description="Whether the pair was drawn at random for review, and counts in "
        "`errors_over_time` of `GET …/calibration`."
    )


class FeedbackSummary(BaseModel):
    """The served probabilities compared with users' feedback on them."""

    n: int
    probability: float = Field(description="Mean of the probabilities.")
    share: float = Field(description="Share of the pairs that users confirmed.")


class ErrorsOverTime(BaseModel):
    """The error rate of verdict `match`, from reviews of answers that were drawn at random.

    It is valid however often it is read, if the decision to review an answer does not depend on
    whether the match is right: compare `n_reviewed` with `n_asked`.
    """

    max_error: float = Field(description="Share of matches that may be wrong.")
    audit_share: float = Field(description="Share of matches drawn for review.")
    n_asked: int = Field(description="Matches drawn, with this bundle.")
    n_reviewed: int = Field(description="Of them somebody spoke of.")
    n_wrong: int = Field(description="Of them are wrong.")
    error_interval: tuple[float, float] = Field(
        description="95 % confidence sequence of the error rate, if that does not change: it holds "
        "the rate at all times at once."
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

    n: int = Field(description="Pairs that users had spoken of.")
    confirmed: int
    n_others: int = Field(description="Further pairs, served with other probabilities: left aside.")
    applied: bool = Field(
        description="Whether the correction foretells what users say better than none, "
        "cross-fitted; else nothing is corrected."
    )
    slope: float = Field(description="On log-odds; 1 where nothing is corrected.")
    intercept: float = Field(description="On log-odds; 0 where nothing is corrected.")
    log_loss_before: float
    log_loss_after: float = Field(description="Cross-fitted.")
