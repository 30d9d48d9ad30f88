"""Answers to decisions on queries, and the list of decisions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from model_store.feedback import Decided
from model_store.gallery import Receipt
from service import schemas
from service.http.answers.changes import item_written


def feedback_answer(
    kept: Decided, receipt: Receipt | None, *, audited: bool
) -> schemas.FeedbackAnswer:
    """Describe the stored decision.

    Parameters
    ----------
    receipt : receipt of the new item, if the query became an item; otherwise None.
    """
    pair = next((pair for pair in kept.pairs if pair.item_id == kept.item_id), None)
    return schemas.FeedbackAnswer(
        number=kept.number,
        query_id=kept.query_id,
        decision=kept.decision,
        item_id=kept.item_id,
        correct=None
        if kept.item_id is None or kept.decision == "new"
        else kept.decision != "not_this_item",
        rank=None if pair is None else pair.rank,
        match_probability=None if pair is None else pair.match_probability,
        audited=audited,
        item=None if receipt is None else item_written(kept.gallery, receipt),
    )


def decision_list(found: Sequence[Decided], limit: int) -> schemas.DecisionList:
    """Describe the first ``limit`` decisions in ``found``; the rest is on the next page."""
    shown = found[:limit]
    more = len(found) > limit
    return schemas.DecisionList(
        decisions=[decision(one) for one in shown], next_after=shown[-1].number if more else None
    )


def decision(kept: Decided) -> schemas.Decision:
    """Describe a decision."""
    return schemas.Decision(
        number=kept.number,
        query_id=kept.query_id,
        decision=kept.decision,
        item_id=kept.item_id,
        label=kept.label,
        reviewer=kept.reviewer,
        comment=kept.comment,
        bundle=kept.bundle,
        decided_at=datetime.fromtimestamp(kept.decided_at, UTC),
        undone_at=None if kept.undone_at is None else datetime.fromtimestamp(kept.undone_at, UTC),
        selection=kept.selection,
        draw_probability=kept.draw_probability,
    )
