"""Answers as HTML for notebooks: the verdict, followed by the result list."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from model_store.decision import Decision
from model_store.matches import Match

_COLUMNS = ("", "item", "label", "P(match)", "similarity")


def answer_html(decision: Decision, matches: Sequence[Match]) -> str:
    """Return an answer as HTML, with escaped item ids and labels."""
    lines = [f"<b>{escape(decision.verdict)}</b>"]
    if decision.no_match_probability is not None:
        lines.append(f"P(no match) {decision.no_match_probability:.3f}")
    if decision.assessment.percentile is not None:
        lines.append(f"more uncertain than {decision.assessment.percentile:.0f} %")
    if decision.reason is not None:
        lines.append(escape(decision.reason))
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = "".join(map(_row, matches))
    return f"<p>{'; '.join(lines)}</p><table><tr>{head}</tr>{rows}</table>"


def _row(match: Match) -> str:
    probability = "" if match.match_probability is None else f"{match.match_probability:.3f}"
    cells = (
        str(match.rank),
        escape(match.item.id),
        escape(match.item.label or ""),
        probability,
        f"{match.similarity:.3f}",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
