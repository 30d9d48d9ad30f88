"""The order in which cases are given to reviewers, and in which they go where there are too many.

Cases with a decision that need another come first; then those come that would teach
most. But one in `RANDOM_TURN` is one drawn at random, the oldest, while one is left; and by
what they would teach no such cases are given: those that were decided on would be no random ones.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_store.decision import Recalibration, fit_recalibration
from model_store.feedback.agreement import n_missing
from model_store.feedback.decisions import COLUMNS, Decided
from model_store.feedback.log import pairs_in
from model_store.feedback.teaching import most_teaching
from model_store.verdicts import CaseReason

RANDOM_TURN = 4
"""One in so many cases that are given was drawn at random: reviewers who see but what teaches most
never learn how often the service is right."""

MIN_DRAWN = 30
"""Cases drawn at random from which on they stand for all that is served."""


class Waiting(NamedTuple):
    """A case that waits for a decision; ``begun``: it has one already."""

    number: int
    drawn: bool
    begun: bool
    n_bytes: int
    log_odds: float
    fingerprint: str | None


def free(
    connection: sqlite3.Connection,
    gallery: str,
    encoder: str,
    reviewer: str,
    reasons: Collection[CaseReason],
    now: float,
) -> list[Waiting]:
    """Return the open cases that a reviewer may be given, oldest first."""
    holders: dict[int, set[str]] = defaultdict(set)
    for number, holder in connection.execute(
        "SELECT number, reviewer FROM case_leases WHERE until > ?", (now,)
    ):
        holders[number].add(holder)
    made = _made(connection, gallery)
    rows = connection.execute(
        "SELECT number, drawn, n_bytes, match_log_odds, match_fingerprint, wanted, reason "
        "FROM cases WHERE gallery = ? AND encoder = ? AND settled_at IS NULL ORDER BY number",
        (gallery, encoder),
    )
    return [
        _waiting(row, begun=bool(made.get(row[0])))
        for row in rows
        if row[6] in reasons
        and reviewer not in holders[row[0]]
        and reviewer not in {one.reviewer for one in made.get(row[0], ())}
        and len(holders[row[0]]) < n_missing(made.get(row[0], ()), row[5])
    ]


def take(
    connection: sqlite3.Connection, gallery: str, waiting: Sequence[Waiting], n: int
) -> list[int]:
    """Return the numbers of the next ``n`` cases, or of fewer, and count whose turn it is."""
    begun = [case for case in waiting if case.begun]
    drawn = [case for case in waiting if case.drawn and not case.begun]
    others = [case for case in waiting if not case.drawn and not case.begun]
    places = most_teaching(*_known(connection, others, drawn), n)
    ordered = begun + [others[place] for place in places]
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
    """Return the numbers of the cases that have to go for the bounds to hold.

    What is settled goes first, then what would teach least, then what was drawn; oldest first.
    """
    n, n_bytes = connection.execute(
        "SELECT COUNT(*), COALESCE(SUM(n_bytes), 0) FROM cases WHERE gallery = ?", (gallery,)
    ).fetchone()
    if n <= most and n_bytes <= most_bytes:
        return []
    rows = connection.execute(
        "SELECT number, drawn, n_bytes, match_log_odds, match_fingerprint, settled_at IS NULL "
        "FROM cases WHERE gallery = ? ORDER BY number",
        (gallery,),
    ).fetchall()
    settled = [_waiting(row) for row in rows if not row[5]]
    drawn = [_waiting(row) for row in rows if row[5] and row[1]]
    others = [_waiting(row) for row in rows if row[5] and not row[1]]
    places = most_teaching(*_known(connection, others, drawn), len(others))
    going: list[int] = []
    for case in [*settled, *(others[place] for place in reversed(places)), *drawn]:
        if n <= most and n_bytes <= most_bytes:
            break
        going.append(case.number)
        n, n_bytes = n - 1, n_bytes - case.n_bytes
    return going


def _waiting(row: Sequence[int | float | str | None], *, begun: bool = False) -> Waiting:
    number, drawn, n_bytes, log_odds, fingerprint = row[:5]
    known = float("nan") if log_odds is None else float(log_odds)
    name = None if fingerprint is None else str(fingerprint)
    return Waiting(int(number or 0), bool(drawn), begun, int(n_bytes or 0), known, name)


def _made(connection: sqlite3.Connection, gallery: str) -> dict[int, list[Decided]]:
    """Return the decisions that hold on open cases, by the number of the case."""
    columns = ", ".join(f"decisions.{name}" for name in COLUMNS)
    made: dict[int, list[Decided]] = defaultdict(list)
    for number, *row in connection.execute(
        f"SELECT cases.number, {columns} FROM cases JOIN decisions USING (gallery, query_id) "  # noqa: S608
        "WHERE gallery = ? AND settled_at IS NULL AND undone_at IS NULL ORDER BY decisions.number",
        (gallery,),
    ):
        made[number].append(Decided.of_row(row))
    return made


def _known(
    connection: sqlite3.Connection, others: Sequence[Waiting], drawn: Sequence[Waiting]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], Recalibration]:
    """Return what `most_teaching` is to know: log-odds of cases, of pairs, of the stream."""
    stream = drawn if len(drawn) >= MIN_DRAWN else [*others, *drawn]
    fingerprint = next((one.fingerprint for one in reversed(others) if one.fingerprint), None)
    said = pairs_in(connection, fingerprint)
    asked = said.drawn | said.ordered
    served = fit_recalibration(said.log_odds, said.correct, ~asked)
    return _log_odds(others), said.log_odds[asked], _log_odds(stream), served


def _log_odds(waiting: Sequence[Waiting]) -> NDArray[np.float64]:
    return np.array([case.log_odds for case in waiting], np.float64)
