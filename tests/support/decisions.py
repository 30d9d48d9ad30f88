"""Decisions on pairs, each said a second after the one before."""

from __future__ import annotations

from itertools import count

from model_store.feedback import Decided, Pair

_SECONDS = count(1000)


def said(
    query: str,
    *,
    correct: bool,
    item: str = "i",
    bundle: str = "b",
    probability: float = 0.9,
    log_odds: float = 2.2,
    origin: str = "origin",
) -> Decided:
    """Confirm or reject the first item that a query found."""
    return Decided(
        gallery="g",
        bundle=bundle,
        query_id=query,
        decision="this_item" if correct else "not_this_item",
        item_id=item,
        label=None,
        reviewer=None,
        comment=None,
        pairs=(Pair(item, correct, 1, probability, log_odds, origin),),
        decided_at=float(next(_SECONDS)),
    )
