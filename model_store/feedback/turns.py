"""The order of cases for reviewers, and the order of deletion if the limits are exceeded.

Randomly drawn cases alternate with other cases. Among the other cases, cases that already have a
decision are first. Within each group, the oldest case is first. Decisions on drawn cases estimate
error rates. Doubtful cases are drawn more often, with known probabilities.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from model_store.feedback.agreement import n_missing
from model_store.feedback.decisions import COLUMNS, Decided
from model_store.verdicts import CaseReason

RANDOM_TURN = 2
"""If this value is n, every n-th lease is for a randomly drawn case."""


class Waiting(NamedTuple):
    """An open case; ``begun`` is True if it already has a decision."""

    number: int
    drawn: bool
    begun: bool


def free(
    connection: sqlite3.Connection,
    gallery: str,
    encoder: str,
    reviewer: str,
    reasons: Collection[CaseReason],
    now: float,
) -> list[Waiting]:
    """Return the open cases that a reviewer may get, oldest first."""
    holders: dict[int, set[str]] = defaultdict(set)
    for number, holder in connection.execute(
        "SELECT number, reviewer FROM case_leases WHERE until > ?", (now,)
    ):
        holders[number].add(holder)
    made = _made(connection, gallery)
    rows = connection.execute(
        "SELECT number, drawn, wanted, reason FROM cases "
        "WHERE gallery = ? AND encoder = ? AND settled_at IS NULL ORDER BY number",
        (gallery, encoder),
    )
    return [
        Waiting(number, bool(drawn), number in made)
        for number, drawn, wanted, reason in rows
        if reason in reasons
        and reviewer not in holders[number]
        and reviewer not in {one.reviewer for one in made.get(number, ())}
        and len(holders[number]) < n_missing(made.get(number, ()), wanted)
    ]


def take(
    connection: sqlite3.Connection, gallery: str, waiting: Sequence[Waiting], n: int
) -> list[int]:
    """Return the numbers of the next cases, at most ``n``; store the turn for the next call."""
    begun = [case for case in waiting if case.begun]
    drawn = [case for case in waiting if case.drawn and not case.begun]
    ordered = begun + [case for case in waiting if not case.drawn and not case.begun]
    found = connection.execute("SELECT given FROM case_turns WHERE gallery = ?", (gallery,))
    (turn,) = found.fetchone() or (0,)
    given: list[int] = []
    while len(given) < n and (drawn or ordered):
        is_random = bool(drawn) and (turn % RANDOM_TURN == 0 or not ordered)
        given.append((drawn if is_random else ordered).pop(0).number)
        turn += 1
    connection.execute("INSERT OR REPLACE INTO case_turns VALUES (?, ?)", (gallery, turn))
    return given


def displaced(
    connection: sqlite3.Connection, gallery: str, most: int, most_bytes: int
) -> list[int]:
    """Return the numbers of the cases that must be deleted to meet the limits.

    The order of deletion is: settled cases, other cases that were not drawn, drawn cases. Within
    each group, the oldest case is first.
    """
    n, n_bytes = connection.execute(
        "SELECT COUNT(*), COALESCE(SUM(n_bytes), 0) FROM cases WHERE gallery = ?", (gallery,)
    ).fetchone()
    if n <= most and n_bytes <= most_bytes:
        return []
    rows = connection.execute(
        "SELECT number, n_bytes FROM cases WHERE gallery = ? "
        "ORDER BY settled_at IS NULL, settled_at IS NULL AND drawn, number",
        (gallery,),
    ).fetchall()
    going: list[int] = []
    for number, size in rows:
        if n <= most and n_bytes <= most_bytes:
            break
        going.append(number)
        n, n_bytes = n - 1, n_bytes - size
    return going


def _made(connection: sqlite3.Connection, gallery: str) -> dict[int, list[Decided]]:
    """Return the decisions on open cases, except undone decisions, by case number."""
    columns = ", ".join(f"decisions.{name}" for name in COLUMNS)
    made: dict[int, list[Decided]] = defaultdict(list)
    for number, *row in connection.execute(
        f"SELECT cases.number, {columns} FROM cases JOIN decisions USING (gallery, query_id) "  # noqa: S608
        "WHERE gallery = ? AND settled_at IS NULL AND undone_at IS NULL ORDER BY decisions.number",
        (gallery,),
    ):
        made[number].append(Decided.of_row(row))
    return made
