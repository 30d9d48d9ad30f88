"""The words of people on answers, in one SQLite file that services and commands share.

::

    log        pairs of a query and an item, and what was drawn for review
    decisions  what a reviewer decided of a query, one entry after another; the log keeps them
    answered   queries that can be decided on after they have left the cache
    exchange   decisions as CSV and JSONL
"""

from model_store.feedback.answered import AnsweredQueries, AnsweredQuery
from model_store.feedback.decisions import DECISIONS, Decided, DecisionKind, Pair, moment
from model_store.feedback.log import (
    FeedbackLog,
    FeedbackSummary,
    Reviews,
    SaidPairs,
)

__all__ = [
    "DECISIONS",
    "AnsweredQueries",
    "AnsweredQuery",
    "Decided",
    "DecisionKind",
    "FeedbackLog",
    "FeedbackSummary",
    "Pair",
    "Reviews",
    "SaidPairs",
    "moment",
]
