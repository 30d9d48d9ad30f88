"""Agreement of reviewers who decided on a query independently."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from model_store.feedback.decisions import Decided


def votes(decided: Sequence[Decided]) -> list[Decided]:
    """Return the last decision of each reviewer that holds; without a name all are one reviewer."""
    last = {one.reviewer: one for one in decided if one.undone_at is None}
    return list(last.values())


def agreed(decided: Sequence[Decided], wanted: int) -> list[Decided]:
    """Return the decisions of the first ``wanted`` or more reviewers that agree; none: they do not.

    Those who name an item agree if it has the same label, or is the same; `none_of_these` and
    `new` agree that nothing matches.
    """
    outcomes: dict[tuple[str, ...], list[Decided]] = defaultdict(list)
    for vote in votes(decided):
        outcomes[_outcome(vote)].append(vote)
    most = max(outcomes.values(), key=len, default=[])
    return most if len(most) >= wanted else []


def n_missing(decided: Sequence[Decided], wanted: int) -> int:
    """Return how many more reviewers have to agree with those who agree most; at least one."""
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
