"""Agreement between reviewers who have decided on the same query independently."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from model_store.feedback.decisions import Decided


def votes(decided: Sequence[Decided]) -> list[Decided]:
    """Return each reviewer's last decision that is not undone.

    All decisions without a reviewer count as decisions of one reviewer.
    """
    last = {one.reviewer: one for one in decided if one.undone_at is None}
    return list(last.values())


def agreed(decided: Sequence[Decided], wanted: int) -> list[Decided]:
    """Return the largest group of equal decisions; empty if fewer than ``wanted`` agree.

    Two decisions for an item agree if the items have the same label or are the same item.
    `none_of_these` and `new` agree with each other.
    """
    outcomes: dict[tuple[str, ...], list[Decided]] = defaultdict(list)
    for vote in votes(decided):
        outcomes[_outcome(vote)].append(vote)
    most = max(outcomes.values(), key=len, default=[])
    return most if len(most) >= wanted else []


def n_missing(decided: Sequence[Decided], wanted: int) -> int:
    """Return the number of additional reviewers who must agree; at least one."""
    most = next(
        (n for n in range(wanted, 0, -1) if agreed(decided, n)),
        0,
    )
    return max(wanted - most, 1)


def _outcome(vote: Decided) -> tuple[str, ...]:
    if vote.decision in {"none_of_these", "new"}:
        return ("nothing",)
    if vote.decision == "not_this_item":
        return ("not", str(vote.item_id))
    named = ("item", str(vote.item_id)) if vote.label is None else ("label", vote.label)
    return ("is", *named)
