"""Cases: queries kept for review."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from model_store.feedback import decisions
from model_store.feedback.agreement import agreed
from model_store.feedback.decisions import Decided, Selection
from model_store.verdicts import CaseReason

CASE_REASONS: tuple[CaseReason, ...] = get_args(CaseReason)
"""``ambiguous``, ``absent`` and ``alien``: the verdict was ``ambiguous``, ``no_match`` or
``out_of_distribution``; ``contradicted``: a reviewer says that a match is none; ``random``: drawn
from all queries, whatever the answer."""

CaseState = Literal["open", "settled"]

_COLUMNS = (
    "number, gallery, encoder, bundle, query_id, reason, drawn, verdict, found, "
    "no_match_probability, match_log_odds, match_fingerprint, reviewers, wanted, kept_at, "
    "media_type, n_bytes, settled_at, draw_probability, drawn_evenly"
)


@dataclass(frozen=True, slots=True)
class FoundItem:
    """An item that was served for a case."""

    item_id: str
    label: str | None
    match_probability: float | None


@dataclass(frozen=True, slots=True)
class Case:
    """A query kept for review, and its answer.

    Attributes
    ----------
    gallery, encoder, bundle : what answered; the encoder by its fingerprint.
    query_id : of the answer.
    reason : see `CASE_REASONS`.
    drawn : whether it was drawn at random, whatever the reason.
    draw_probability : with which it was drawn, see `ReviewDraws`; None if it was not.
    drawn_evenly : whether it belongs to the draws that every query is in with one probability.
    verdict : of the answer.
    found : the first items of the answer, nearest first.
    no_match_probability : as served.
    match_log_odds : of the first item, uncorrected by feedback; None where it has none.
    match_fingerprint : of what that came from, see `Calibration.match_fingerprint`.
    reviewers : who have to agree before a decision on an answer counts.
    wanted : who have to agree before the case is settled; a contradicted one wants two.
    kept_at : seconds since 1970.
    number : counts the cases; 0 before it is stored.
    media_type : of its picture; None where there is none.
    n_bytes : of its picture.
    settled_at : when reviewers agreed; None while it is open.
    """

    gallery: str
    encoder: str
    bundle: str
    query_id: str
    reason: CaseReason
    drawn: bool
    verdict: str
    found: tuple[FoundItem, ...]
    no_match_probability: float | None
    match_log_odds: float | None
    match_fingerprint: str | None
    reviewers: int
    wanted: int
    kept_at: float
    number: int = 0
    media_type: str | None = None
    n_bytes: int = 0
    settled_at: float | None = None
    draw_probability: float | None = None
    drawn_evenly: bool = False

    @property
    def selection(self) -> Selection:
        """The way in which decisions come about that this case asked for."""
        if self.reason == "contradicted":  # it was chosen because it is wrong
            return "volunteered"
        return "drawn" if self.drawn else "ordered"

    def row(self) -> tuple[Any, ...]:
        """Return the columns of the table but the first."""
        fields = asdict(self) | {"found": json.dumps([asdict(item) for item in self.found])}
        return tuple(fields[name] for name in _COLUMNS.split(", ")[1:])

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Case:
        """Read a row of the table."""
        fields = dict(zip(_COLUMNS.split(", "), row, strict=True))
        found = tuple(FoundItem(**item) for item in json.loads(fields.pop("found")))
        drawn, evenly = bool(fields.pop("drawn")), fields.pop("drawn_evenly")
        # An earlier release drew all queries with one probability.
        evenly = drawn if evenly is None else bool(evenly)
        return cls(found=found, drawn=drawn, drawn_evenly=evenly, **fields)


def add(connection: sqlite3.Connection, case: Case) -> Case | None:
    """Keep a case; returns it with its number, or None where there is one of the query already."""
    marks = ",".join("?" * len(case.row()))
    names = _COLUMNS.partition(", ")[2]
    cursor = connection.execute(
        f"INSERT INTO cases ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608
        case.row(),
    )
    return replace(case, number=int(cursor.lastrowid or 0)) if cursor.rowcount else None


def find(connection: sqlite3.Connection, gallery: str, query_id: str) -> Case | None:
    """Return the case of a query; None where there is none."""
    found = listed(connection, {"gallery": gallery, "query_id": query_id})
    return found[0] if found else None


def listed(
    connection: sqlite3.Connection,
    where: Mapping[str, Any],
    state: CaseState | None = None,
    after: int = 0,
    limit: int = -1,
) -> list[Case]:
    """Return cases by their number.

    Parameters
    ----------
    where : values of columns, such as ``gallery``.
    state : None for all.
    after : the number that they follow.
    limit : so many at most; −1 for all.
    """
    conditions = [f"{name} = ?" for name in where] + ["number > ?"]
    if state is not None:
        conditions.append("settled_at IS NULL" if state == "open" else "settled_at IS NOT NULL")
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM cases WHERE {' AND '.join(conditions)} "  # noqa: S608
        "ORDER BY number LIMIT ?",
        (*where.values(), after, limit),
    )
    return [Case.of_row(row) for row in rows]


def selected(connection: sqlite3.Connection, decided: Decided) -> Decided:
    """Return a decision with the way in which its query was chosen: on a lease, or not."""
    case = find(connection, decided.gallery, decided.query_id)
    if case is None:
        return replace(decided, selection="volunteered", draw_probability=None)
    leased = connection.execute(
        "SELECT 1 FROM case_leases WHERE number = ? AND reviewer = ?",
        (case.number, decided.reviewer),
    ).fetchone()
    chosen: Selection = "volunteered" if leased is None else case.selection
    drawn_with = case.draw_probability if chosen == "drawn" else None
    return replace(decided, selection=chosen, draw_probability=drawn_with)


def counted(
    connection: sqlite3.Connection, gallery: str, query_id: str, newest: Decided | None = None
) -> list[Decided]:
    """Return the decisions on a query that count by now; settle its case, or open it.

    Parameters
    ----------
    newest : the decision that was just made; it ends the reviewer's lease. None: one was taken
        back, and all that count are returned.
    """
    made = decisions.listed(connection, {"gallery": gallery, "query_id": query_id})
    made = [one for one in made if one.undone_at is None]
    case = find(connection, gallery, query_id)
    if case is None:
        return made if newest is None else [newest]
    agreeing = agreed(made, case.wanted)
    settled_at = case.settled_at
    if bool(agreeing) != (settled_at is not None):
        settled_at = max(one.decided_at for one in agreeing) if agreeing else None
        connection.execute(
            "UPDATE cases SET settled_at = ? WHERE number = ?", (settled_at, case.number)
        )
    if newest is not None:
        ended = (case.number, newest.reviewer, settled_at is not None)
        connection.execute(
            "DELETE FROM case_leases WHERE number = ? AND (reviewer = ? OR ?)", ended
        )
    if agreeing and case.wanted > 1:
        return agreeing
    if case.reviewers > 1:
        return []
    return made if newest is None else [newest]


def remove(connection: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Delete cases, with their pictures and leases."""
    rows = [(number,) for number in numbers]
    for table in ("cases", "case_images", "case_leases"):
        connection.executemany(f"DELETE FROM {table} WHERE number = ?", rows)  # noqa: S608
