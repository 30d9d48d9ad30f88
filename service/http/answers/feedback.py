"""Answers to feedback."""

from __future__ import annotations

from model_store.feedback import Feedback
from service import schemas


def feedback_answer(feedback: Feedback, *, audited: bool) -> schemas.FeedbackAnswer:
    """Describe the feedback that was stored."""
    return schemas.FeedbackAnswer(
        query_id=feedback.query_id,
        item_id=feedback.item_id,
        correct=feedback.correct,
        rank=feedback.rank,
        match_probability=feedback.match_probability,
        audited=audited,
    )
