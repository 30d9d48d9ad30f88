"""What users say of matches."""

from __future__ import annotations

from pydantic import BaseModel, Field


class FeedbackRequest(BaseModel):
    """Whether an item is a true match of a query that was searched with before."""

    query_id: str = Field(pattern="^[0-9a-f]{64}$", description="`query.id` of an answer.")
    item_id: str = Field(min_length=1, max_length=4096)
    correct: bool = Field(description="Confirmed, or rejected.")


class FeedbackAnswer(BaseModel):
    """What was kept: with it, how true probabilities are can be seen, and fitted anew."""

    query_id: str
    item_id: str
    correct: bool
    rank: int
    match_probability: float = Field(description="What was served for the pair.")


class FeedbackSummary(BaseModel):
    """How served probabilities compare with what users said of them."""

    n: int
    probability: float = Field(description="Mean of the probabilities.")
    share: float = Field(description="Share of the pairs that users confirmed.")


class FeedbackCorrection(BaseModel):
    """What users' words of earlier matches changed about match probabilities."""

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
