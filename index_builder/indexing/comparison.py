"""Compares the error bounds of two bundles, and their answers to the same queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from index_builder.calibration.evaluate import Evaluation
from index_builder.indexing.evaluation_page import picture_of, rendered, thumbnail_of
from model_store.answers import ComparedAnswers, Said, reason_of_change
from model_store.decision import Calibration
from model_store.gallery import Gallery

N_SHOWN = 24
"""For each kind of changed answer, the maximum number of answers that a page shows."""

KINDS = ("broken", "fixed", "changed")
"""Kinds of changed answers. A right answer became wrong, a wrong answer became right, or only the
verdict or item changed."""

RATES = ("coverage", "error", "ece")
PROMISED = ("max_error", "max_false_match_rate", "alpha", "coverage", "expected_absent")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two compared bundles, with its answers to the queries."""

    name: str
    evaluation: Evaluation
    calibration: Calibration
    gallery: Gallery

    def row_of(self) -> dict[str, int]:
        """Return a dictionary that maps the id of each query to the row of the query."""
        return {name: row for row, name in enumerate(self.evaluation.queries.ids)}

    def said(self, row: int) -> Said:
        """Return the answer to the query at ``row``."""
        return Said.of(self.evaluation.answers[row])

    def right(self, row: int) -> bool:
        """Return whether the answer to a query is right.

        If the query has a match, the answer must have the verdict `match`, and its first item must
        be a true match. If the query has no match, every verdict except `match` is right.
        """
        called = self.said(row).verdict == "match"
        if self.evaluation.absent[row]:
            return not called
        return called and bool(self.evaluation.correct[row])


@dataclass(frozen=True, slots=True)
class AnswerChange:
    """A query with different answers: the kind of change, and the query's row on each side."""

    kind: str
    old: int
    new: int


def compared(old: Side, new: Side) -> dict[str, Any]:
    """Return a JSON object with error bounds of both sides and counts of changed answers."""
    changes = list(changes_of(old, new))
    counted = ComparedAnswers()
    for before, row in _rows_of_both(old, new):
        counted.add(old.said(before), new.said(row))
    verdicts = {f"{was} → {is_now}": n for (was, is_now), n in counted.verdicts.items()}
    return {
        "n_queries": counted.n,
        "promised": {
            name: [getattr(side.calibration, name) for side in (old, new)] for name in PROMISED
        },
        "thresholds": _thresholds(old, new),
        "measured": {
            name: [side.evaluation.report["stream"][name] for side in (old, new)] for name in RATES
        }
        | {
            name: [side.evaluation.report["stream"][name]["share"] for side in (old, new)]
            for name in ("fpir", "fnir")
        }
        | {
            name: [side.evaluation.report[name] for side in (old, new)]
            for name in ("recall_at_1", "recall_at_10")
        },
        "verdicts": dict(sorted(verdicts.items())),
        "reasons": dict(sorted(counted.reasons.items())),
        "changes": {kind: sum(one.kind == kind for one in changes) for kind in KINDS},
    }


def changes_of(old: Side, new: Side) -> Iterator[AnswerChange]:
    """Yield the queries to which the two sides give different answers, in the order of ``new``."""
    for before, row in _rows_of_both(old, new):
        was, is_now = old.right(before), new.right(row)
        if was != is_now:
            yield AnswerChange("broken" if was else "fixed", before, row)
        elif reason_of_change(old.said(before), new.said(row)) is not None:
            yield AnswerChange("changed", before, row)


def page(old: Side, new: Side, report: dict[str, Any]) -> str:
    """Return an HTML page of the comparison, with pictures for changed answers."""
    shown: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for change in changes_of(old, new):
        if len(shown[change.kind]) < N_SHOWN:
            shown[change.kind].append(
                {
                    "id": new.evaluation.queries.ids[change.new],
                    "picture": picture_of(new.evaluation.queries, change.new),
                    "old": _drawn(old, change.old),
                    "new": _drawn(new, change.new),
                }
            )
    return rendered("comparison.html.jinja", old=old, new=new, report=report, shown=shown)


def _drawn(side: Side, row: int) -> dict[str, Any]:
    said = side.said(row)
    return {
        "picture": None if said.item_id is None else thumbnail_of(side.gallery, said.item_id),
        "name": said.name,
        "verdict": said.verdict,
        "probability": said.probability,
    }


def _rows_of_both(old: Side, new: Side) -> Iterator[tuple[int, int]]:
    """For each query that both sides have, yield the query's row in ``old`` and its row in ``new``.

    The order is the order of ``new``.
    """
    rows = old.row_of()
    for name, row in new.row_of().items():
        if name in rows:
            yield rows[name], row


def _thresholds(old: Side, new: Side) -> dict[str, list[float | None]]:
    """Return, for each size class, the threshold of `match` on the old and on the new side.

    A threshold is None if this side has no guarantee for the size class.
    """
    sides = [side.calibration.promises().matches for side in (old, new)]
    return {
        was.size_class: [None if one.point is None else one.threshold for one in (was, is_now)]
        for was, is_now in zip(*sides, strict=True)
    }
