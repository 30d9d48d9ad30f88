"""The review queue: cases for review, and their leases to reviewers.

Reviewers get randomly drawn cases and other cases in turn. Among the other cases, cases that
already have a decision are first. Within each group, the oldest case is first. Decisions on drawn
cases estimate error rates. Doubtful cases are drawn more often, with known probabilities.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from model_store.feedback import answered, cases
from model_store.feedback.answered import AnsweredQuery
from model_store.feedback.cases import Case, CaseState
from model_store.feedback.decisions import COLUMNS, Decided, n_missing
from model_store.feedback.file import opened
from model_store.messages import CaseReason
from model_store.table import HalfRows, Table


@dataclass(frozen=True, slots=True)
class Picture:
    """The picture of a case."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class NewCase:
    """A new case, with the embedding of the query and an optional picture."""

    case: Case
    embedded: AnsweredQuery
    picture: Picture | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits on the cases of a gallery.

    Attributes
    ----------
    retention_s : seconds after which a case is deleted.
    most : maximum number of cases.
    most_bytes : maximum size of all pictures in bytes.
    query_retention_s : seconds after which the embedding of an answered query without a case is
        deleted.
    """

    retention_s: float
    most: int
    most_bytes: int
    query_retention_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Leased:
    """A case that is leased to a reviewer; the lease ends at ``until``, in seconds since 1970."""

    case: Case
    until: float


@dataclass(frozen=True, slots=True)
class KeptQueries(Table):
    """The embeddings of queries with a case.

    Attributes
    ----------
    query_ids : (n,) id of each query.
    reasons : (n,) reason of each query's case.
    kept_at : (n,) time of storage, seconds since 1970.
    is_open : (n,) whether the case is open.
    mean : (n, D), rounded to half precision.
    variance : (n, D), rounded to half precision.
    features : (n, F), rounded to half precision.
    """

    query_ids: tuple[str, ...]
    reasons: tuple[CaseReason, ...]
    kept_at: NDArray[np.float64]
    is_open: NDArray[np.bool_]
    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    features: NDArray[np.float32]


class ReviewQueue:
    """The cases of all galleries in the feedback file; processes can share the file.

    A case is open until enough reviewers agree. `FeedbackLog` stores the decisions.
    """

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self._path, self._bounds = path, bounds

    def add(self, new: Sequence[NewCase]) -> dict[str, int]:
        """Store cases. If a query already has a case without a picture, add the picture to it.

        Expired cases are deleted. If the remaining cases exceed the limits, more cases are deleted,
        see `_displaced_cases`.

        Returns
        -------
        Numbers of cases: ``kept`` (new), ``expired``, and ``displaced`` (deleted because of the
        limits).
        """
        now = time.time()
        n_kept = 0
        with opened(self._path, writing=True) as connection:
            for one in new:
                n_kept += self._add(connection, one)
            before = now - self._bounds.retention_s
            rows = connection.execute("SELECT number FROM cases WHERE kept_at < ?", (before,))
            expired = [number for (number,) in rows]
            cases.remove(connection, expired)
            displaced = [
                number
                for gallery in {one.case.gallery for one in new}
                for number in _displaced_cases(
                    connection, gallery, self._bounds.most, self._bounds.most_bytes
                )
            ]
            cases.remove(connection, displaced)
            answered.purge(connection, now - self._bounds.query_retention_s)
        return {"kept": n_kept, "expired": len(expired), "displaced": len(displaced)}

    def lease(
        self,
        gallery: str,
        encoder: str,
        reviewer: str,
        n: int,
        seconds: float,
        reasons: Collection[CaseReason] = cases.CASE_REASONS,
    ) -> list[Leased]:
        """Lease at most ``n`` cases to a reviewer for a number of seconds.

        During this time, other reviewers do not get these cases, unless several reviewers must
        decide. A reviewer who has decided on a case does not get the case again. See
        `model_store.feedback.queue` for the order of cases.

        Parameters
        ----------
        encoder : fingerprint of the served encoder. Only cases with embeddings by this encoder are
            leased.
        """
        now = time.time()
        with opened(self._path, writing=True) as connection:
            free = _free_cases(connection, gallery, encoder, reviewer, reasons, now)
            numbers = _take_cases(connection, gallery, free, n)
            until = now + seconds
            connection.executemany(
                "INSERT OR REPLACE INTO case_leases VALUES (?, ?, ?)",
                [(number, reviewer, until) for number in numbers],
            )
            found = [cases.listed(connection, {"number": number})[0] for number in numbers]
        return [Leased(case, until) for case in found]

    def give_back(self, gallery: str, query_id: str, reviewer: str) -> bool:
        """End a lease without a decision; return whether there was a lease."""
        with opened(self._path, writing=True) as connection:
            ended = connection.execute(
                "DELETE FROM case_leases WHERE reviewer = ? AND number IN "
                "(SELECT number FROM cases WHERE gallery = ? AND query_id = ?)",
                (reviewer, gallery, query_id),
            )
            return ended.rowcount > 0

    def contradict(self, new: NewCase) -> None:
        """Request a second reviewer for a match that a reviewer has rejected."""
        with opened(self._path, writing=True) as connection:
            self._add(connection, new)
            connection.execute(
                "UPDATE cases SET reason = 'contradicted', wanted = MAX(wanted, 2), "
                "settled_at = NULL WHERE gallery = ? AND query_id = ? AND reason = 'random'",
                (new.case.gallery, new.case.query_id),
            )

    def find(self, gallery: str, query_id: str) -> Case | None:
        """Return the case of a query; None if the query has no case."""
        with opened(self._path) as connection:
            return cases.find(connection, gallery, query_id)

    def listed(
        self,
        gallery: str,
        where: Mapping[str, Any],
        state: CaseState | None = None,
        after: int = 0,
        limit: int = -1,
    ) -> list[Case]:
        """Return cases of a gallery in order of their numbers; see `cases.listed`."""
        with opened(self._path) as connection:
            return cases.listed(connection, {"gallery": gallery, **where}, state, after, limit)

    def counts(self, gallery: str) -> dict[tuple[CaseReason, CaseState], int]:
        """Return the number of cases for each reason and state."""
        with opened(self._path) as connection:
            rows = connection.execute(
                "SELECT reason, CASE WHEN settled_at IS NULL THEN 'open' ELSE 'settled' END, "
                "COUNT(*) FROM cases WHERE gallery = ? GROUP BY 1, 2",
                (gallery,),
            ).fetchall()
        return {(reason, state): n for reason, state, n in rows}

    def picture(self, gallery: str, query_id: str) -> Picture | None:
        """Return the picture of a case; None if the case has no picture."""
        with opened(self._path) as connection:
            row = connection.execute(
                "SELECT data, media_type FROM cases JOIN case_images USING (number) "
                "WHERE gallery = ? AND query_id = ?",
                (gallery, query_id),
            ).fetchone()
        return None if row is None else Picture(*row)

    def forget(self, gallery: str, query_id: str) -> bool:
        """Delete a case, its picture and its embeddings; return whether the case existed."""
        with opened(self._path, writing=True) as connection:
            case = cases.find(connection, gallery, query_id)
            if case is not None:
                cases.remove(connection, [case.number])
            return answered.forget(connection, gallery, query_id) or case is not None

    def embedded(
        self, gallery: str, encoder: str, reasons: Sequence[CaseReason] = cases.CASE_REASONS
    ) -> KeptQueries:
        """Return the embeddings by one encoder for the cases of a gallery, oldest case first.

        Parameters
        ----------
        encoder : fingerprint of the encoder.
        reasons : reasons of the returned cases; ``("absent",)`` for queries with verdict
            ``no_match``.
        """
        marks = ",".join("?" * len(reasons))
        with opened(self._path) as connection:
            rows = connection.execute(
                "SELECT query_id, reason, kept_at, settled_at IS NULL, mean, variance, features "  # noqa: S608
                "FROM cases JOIN answered USING (gallery, encoder, query_id) "
                f"WHERE gallery = ? AND encoder = ? AND reason IN ({marks}) ORDER BY number",
                (gallery, encoder, *reasons),
            ).fetchall()
        parts = [
            HalfRows.from_bytes([row[place] for row in rows]).whole()
            if rows
            else np.zeros((0, 0), np.float32)
            for place in (4, 5, 6)
        ]
        return KeptQueries(
            tuple(row[0] for row in rows),
            tuple(row[1] for row in rows),
            np.array([row[2] for row in rows], np.float64),
            np.array([row[3] for row in rows], np.bool_),
            *parts,
        )

    @staticmethod
    def _add(connection: sqlite3.Connection, new: NewCase) -> bool:
        picture = new.picture
        case = new.case
        if answered.is_forgotten(connection, case.gallery, new.embedded):
            return False
        if picture is not None:
            case = replace(case, media_type=picture.media_type, n_bytes=len(picture.data))
        kept = cases.add(connection, case)
        is_new = kept is not None
        if kept is None:
            known = cases.find(connection, case.gallery, case.query_id)
            if known is None or known.media_type is not None or picture is None:
                return False
            kept = replace(known, media_type=case.media_type, n_bytes=case.n_bytes)
            connection.execute(
                "UPDATE cases SET media_type = ?, n_bytes = ? WHERE number = ?",
                (kept.media_type, kept.n_bytes, kept.number),
            )
        if picture is not None:
            row = (kept.number, picture.data)
            connection.execute("INSERT OR REPLACE INTO case_images VALUES (?, ?)", row)
        answered.add(connection, case.gallery, case.encoder, [new.embedded], case.kept_at)
        return is_new


RANDOM_TURN = 2
"""If this value is n, every n-th lease is for a randomly drawn case."""


class Waiting(NamedTuple):
    """An open case; ``begun`` is True if it already has a decision."""

    number: int
    drawn: bool
    begun: bool


def _free_cases(
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


def _take_cases(
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


def _displaced_cases(
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
