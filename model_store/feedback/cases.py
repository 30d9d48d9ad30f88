"""Cases: queries kept for review."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from model_store.feedback import decisions
from model_store.feedback.decisions import Decided, Selection, agreed
from model_store.messages import CaseReason

CASE_REASONS: tuple[CaseReason, ...] = get_args(CaseReason)
"""Reasons for a review. ``ambiguous``: the verdict was ``ambiguous``. ``absent``: the verdict was
``no_match``. ``alien``: the verdict was ``out_of_distribution``. ``contradicted``: a reviewer has
rejected a match. ``random``: the query was drawn at random, independent of the answer."""

CaseState = Literal["open", "settled"]


@dataclass(frozen=True, slots=True)
class CaseItem:
    """An item in the answer to a case's query."""

    item_id: str
    label: str | None
    match_probability: float | None


@dataclass(frozen=True, slots=True)
class Case:
    """A query for review, and its answer.

    Attributes
    ----------
    gallery : name of the gallery that gave the answer.
    encoder : fingerprint of the encoder.
    bundle : bundle that gave the answer.
    query_id : id of the query.
    reason : see `CASE_REASONS`.
    drawn : whether the query was drawn at random; independent of the reason.
    draw_probability : probability of the draw, see `ReviewDraws`; None if not drawn.
    drawn_evenly : whether the query also belongs to the draw in which all queries have the same
        probability.
    verdict : verdict of the answer.
    found : the first items of the answer, nearest first.
    no_match_probability : served no-match probability.
    match_log_odds : log-odds of the first item, before the correction by feedback; None if they are
        not known.
    match_fingerprint : origin of the log-odds, see `Calibration.match_fingerprint`.
    reviewers : number of reviewers who must agree before a decision counts.
    wanted : number of reviewers who must agree to settle the case; at least two for a contradicted
        case.
    kept_at : time of storage, seconds since 1970.
    number : number of the case; 0 before it is stored.
    media_type : media type of the picture; None without a picture.
    n_bytes : size of the picture.
    settled_at : time of the agreement; None while the case is open.
    """

    gallery: str
    encoder: str
    bundle: str
    query_id: str
    reason: CaseReason
    drawn: bool
    verdict: str
    found: tuple[CaseItem, ...]
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
        """How the query of this case was selected for review, see `SELECTIONS`."""
        if self.reason == "contradicted":  # the rejection selected it
            return "volunteered"
        return "drawn" if self.drawn else "ordered"

    def recorded(self, decided: Decided) -> Decided:
        """Return a decision on this case, with a record of how its query was selected."""
        drawn_with = self.draw_probability if self.selection == "drawn" else None
        return replace(decided, selection=self.selection, draw_probability=drawn_with)

    def row(self) -> tuple[Any, ...]:
        """Return the columns of the table, except the first."""
        values = asdict(self)
        values["found"] = json.dumps(values["found"])
        return tuple(values[name] for name in _COLUMNS[1:])

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Case:
        """Read a row of the table."""
        values = dict(zip(_COLUMNS, row, strict=True))
        found = tuple(CaseItem(**item) for item in json.loads(values.pop("found")))
        drawn, evenly = bool(values.pop("drawn")), values.pop("drawn_evenly")
        # Earlier releases drew all queries with the same probability.
        evenly = drawn if evenly is None else bool(evenly)
        return cls(found=found, drawn=drawn, drawn_evenly=evenly, **values)


_COLUMNS = ("number", *(one.name for one in fields(Case) if one.name != "number"))
"""Columns of the table; their order in a file may differ."""


def add(connection: sqlite3.Connection, case: Case) -> Case | None:
    """Store a case and return it with its number; None if the query already has a case."""
    marks = ",".join("?" * len(case.row()))
    names = ", ".join(_COLUMNS[1:])
    cursor = connection.execute(
        f"INSERT INTO cases ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING",  # noqa: S608
        case.row(),
    )
    return replace(case, number=int(cursor.lastrowid or 0)) if cursor.rowcount else None


def find(connection: sqlite3.Connection, gallery: str, query_id: str) -> Case | None:
    """Return the case of a query; None if there is none."""
    found = listed(connection, {"gallery": gallery, "query_id": query_id})
    return found[0] if found else None


def listed(
    connection: sqlite3.Connection,
    where: Mapping[str, Any],
    state: CaseState | None = None,
    after: int = 0,
    limit: int = -1,
) -> list[Case]:
    """Return cases in order of their numbers.

    Parameters
    ----------
    where : required values of columns, for example ``gallery``.
    state : state of the cases; None for all.
    after : only cases with a greater number.
    limit : maximum number of cases; −1 for all.
    """
    conditions = [f"{name} = ?" for name in where] + ["number > ?"]
    if state is not None:
        conditions.append("settled_at IS NULL" if state == "open" else "settled_at IS NOT NULL")
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)} FROM cases WHERE {' AND '.join(conditions)} "  # noqa: S608
        "ORDER BY number LIMIT ?",
        (*where.values(), after, limit),
    )
    return [Case.of_row(row) for row in rows]


def selected(connection: sqlite3.Connection, decided: Decided) -> Decided:
    """Return the decision with a record of how its query was selected.

    The record depends on the query's case and on the reviewer's lease of this case.
    """
    case = find(connection, decided.gallery, decided.query_id)
    leased = (
        case
        and connection.execute(
            "SELECT 1 FROM case_leases WHERE number = ? AND reviewer = ?",
            (case.number, decided.reviewer),
        ).fetchone()
    )
    if case is None or leased is None:
        return replace(decided, selection="volunteered", draw_probability=None)
    return case.recorded(decided)


def counted(
    connection: sqlite3.Connection, gallery: str, query_id: str, newest: Decided | None = None
) -> list[Decided]:
    """Return the effective decisions on a query; settle or reopen the query's case.

    If several reviewers must agree, only decisions on which enough reviewers agree are effective.

    Parameters
    ----------
    newest : the new decision, which ends the reviewer's lease; None after an undo. If one reviewer
        is enough, only the new decision is returned. After an undo, all decisions are returned.
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
