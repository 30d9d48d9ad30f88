"""Reviewer decisions and feedback, in one SQLite file that services and commands share.

::

    file       the SQLite file and its tables
    log        pairs of a query and an item, and matches drawn for review
    decisions  decisions of reviewers, and their agreement; decisions as CSV and JSONL
    answered   answered queries, and those that were drawn at random as evidence
    cases      queries for review, with their answers
    queue      the review queue: cases with pictures, and leases of cases
"""

from model_store.feedback.answered import AnsweredQueries, AnsweredQuery, DrawnQuery, drawn_queries
from model_store.feedback.cases import (
    CASE_REASONS,
    Case,
    CaseItem,
    CaseState,
)
from model_store.feedback.decisions import DECISIONS, Decided, DecisionKind, Pair, moment
from model_store.feedback.file import require_feedback_file
from model_store.feedback.log import (
    FeedbackLog,
    Reviews,
    SaidPairs,
)
from model_store.feedback.queue import (
    Bounds,
    KeptQueries,
    Leased,
    NewCase,
    Picture,
    ReviewQueue,
)
from model_store.messages import CaseReason
