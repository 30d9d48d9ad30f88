"""User feedback on matches, for the next calibration and to check the current calibration."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision import MatchDraw, MatchReview
from model_store.feedback import cases, decisions
from model_store.feedback.decisions import Decided
from model_store.feedback.file import FITTED_TO, columns, opened
from model_store.gallery.protocol import Retry
from model_store.records import FeedbackSummary

_DRAW = tuple(field.name for field in fields(MatchDraw))
"""Columns of a drawn match. The last three columns are sums over the undrawn matches since the
previous draw."""


@dataclass(frozen=True, slots=True)
class SaidPairs:
    """Feedback for a fit: pairs whose uncorrected probabilities have the same fingerprint.

    Attributes
    ----------
    log_odds : (n,) uncorrected log-odds.
    correct : (n,) whether a user confirmed the pair as a match.
    queries : (n,) number of each pair's query: pairs of one query have the same number.
    drawn : (n,) whether the pair was drawn at random for review.
    weights : (n,) 1 / π for drawn pairs, with π the probability of the draw, scaled to a mean of 1.
        The weight is 1 for other pairs.
    ordered : (n,) whether the review queue selected the pair because of the verdict on its query.
        If a pair is neither drawn nor ordered, the reviewer chose it.
    n_others : number of all other stored pairs. Their fingerprints are different or missing.
    """

    log_odds: NDArray[np.float64]
    correct: NDArray[np.bool_]
    queries: NDArray[np.int64]
    drawn: NDArray[np.bool_]
    weights: NDArray[np.float64]
    ordered: NDArray[np.bool_]
    n_others: int


@dataclass(frozen=True, slots=True)
class Reviews:
    """The reviews of matches that were drawn for review.

    Attributes
    ----------
    n_asked : number of matches drawn for review.
    matches : the last review of each reviewed match. The matches are in the order of their first
        reviews.
    """

    n_asked: int
    matches: tuple[MatchReview, ...]


class FeedbackLog:
    """Feedback in an SQLite file. Only the last decision on a pair counts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self) -> None:
        """Create the file if it is missing, and check that it can be written.

        Raises
        ------
        WriteError : the file cannot be used.
        """
        with opened(self.path, writing=True) as connection:
            (number,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA user_version = {number:d}")  # a read-only file fails here

    def of_request(self, gallery: str, retry: Retry) -> Decided | None:
        """Return the decision that a request stored before; None for a new request.

        Raises
        ------
        KeyReused : another request had the key of ``retry``.
        """
        if not self.path.exists():
            return None
        with opened(self.path) as connection:
            number = decisions.number_of(connection, gallery, retry, decisions.moment())
            return None if number is None else decisions.find(connection, gallery, number)

    def decide(self, decided: Decided, retry: Retry | None = None) -> Decided:
        """Store a decision and its pairs durably; return it with its number.

        The decision ends the reviewer's lease of the query. If several reviewers must agree, the
        decision has no effect on pairs until the reviewers agree.

        Parameters
        ----------
        retry : identity of the request. A repeated request gets the stored decision.

        Raises
        ------
        KeyReused : another request had the key of ``retry``.
        """
        with opened(self.path, writing=True) as connection:
            if retry is not None:
                number = decisions.number_of(connection, decided.gallery, retry, decided.decided_at)
                if number is not None:
                    return decisions.find(connection, decided.gallery, number)
            kept = _decide(connection, decided)
            if retry is not None:
                decisions.note_request(connection, kept, retry)
            return kept

    def decide_once(self, decided: Decided, *, replayed: bool = False) -> Decided:
        """Store the decision of a request that a client may repeat; see `decide`.

        If an equal decision is already stored, the function returns the stored decision and stores
        nothing. An equal decision has the same reviewer, query, item and kind, and is not undone.

        Parameters
        ----------
        replayed : whether the request was already carried out. If True, the stored decision is
            returned even if this decision was undone.
        """
        same = {
            "gallery": decided.gallery,
            "query_id": decided.query_id,
            "decision": decided.decision,
            "item_id": decided.item_id,
        }
        with opened(self.path, writing=True) as connection:
            for one in decisions.listed(connection, same):
                if one.reviewer == decided.reviewer and (replayed or one.undone_at is None):
                    return one
            return _decide(connection, decided)

    def undo(self, gallery: str, number: int) -> Decided:
        """Undo a decision; the previous decision on its pairs counts again.

        Raises
        ------
        DecisionNotFound
        """
        with opened(self.path, writing=True) as connection:
            decided = decisions.find(connection, gallery, number)
            if decided.undone_at is not None:
                return decided
            undone = decisions.undo(connection, decided, decisions.moment())
            for pair in decided.pairs:
                connection.execute(
                    "DELETE FROM feedback WHERE bundle = ? AND query_id = ? AND item_id = ?",
                    (decided.bundle, decided.query_id, pair.item_id),
                )
            spoken = cases.counted(connection, gallery, decided.query_id)
            all_anew = _hush(connection, gallery, decided.query_id)
            for other in spoken:
                if all_anew or other.bundle == decided.bundle:
                    _say(connection, other)
        return undone

    def decided(self, gallery: str, after: int = 0, limit: int = -1) -> list[Decided]:
        """Return at most ``limit`` decisions (−1: all) with numbers above ``after``."""
        if not self.path.exists():
            return []
        with opened(self.path) as connection:
            return decisions.listed(connection, {"gallery": gallery}, after, limit)

    def bring(self, decided: Iterable[Decided]) -> int:
        """Import all decisions, or none if an error occurs; skip decisions that are already stored.

        Returns
        -------
        Number of new decisions.
        """
        n_new = 0
        with opened(self.path, writing=True) as connection:
            known = {replace(one, number=0) for one in decisions.listed(connection, {})}
            for one in decided:
                kept = _without_own_item(connection, one)
                if known & {replace(one, number=0), replace(kept, number=0)}:
                    continue
                known.add(replace(kept, number=0))
                _take(connection, kept)
                n_new += 1
        return n_new

    def galleries(self) -> list[str]:
        """Return the names of all galleries with decisions, in alphabetical order."""
        with opened(self.path) as connection:
            rows = connection.execute("SELECT DISTINCT gallery FROM decisions ORDER BY gallery")
            return [name for (name,) in rows]

    def summary(self, bundle: str) -> FeedbackSummary | None:
        """Summarise the feedback on a bundle; None if there is no feedback."""
        if not self.path.exists():
            return None
        with opened(self.path) as connection:
            n, probability, share = connection.execute(
                "SELECT COUNT(*), AVG(match_probability), AVG(correct) FROM feedback "
                "WHERE bundle = ?",
                (bundle,),
            ).fetchone()
        return FeedbackSummary(n=n, probability=probability, share=share) if n else None

    def ask(self, bundle: str, matches: Iterable[tuple[str, str, MatchDraw]]) -> None:
        """Store matches that were drawn for review, as tuples: query id, item id, draw.

        If several processes have drawn the same match, the match is stored only once. Its sums over
        undrawn matches are then the totals over these processes.
        """
        now = time.time()
        rows = [
            (bundle, query_id, item_id, now, *(getattr(draw, name) for name in _DRAW))
            for query_id, item_id, draw in matches
        ]
        sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in _DRAW[3:])
        marks = ", ".join("?" * (4 + len(_DRAW)))
        with opened(self.path, writing=True) as connection:
            connection.executemany(
                f"INSERT INTO audits (bundle, query_id, item_id, asked_at, {', '.join(_DRAW)}) "  # noqa: S608
                f"VALUES ({marks}) ON CONFLICT DO UPDATE SET {sums}",
                rows,
            )

    def asked(self, bundle: str, query_id: str, item_id: str) -> bool:
        """Return whether a match was drawn for review."""
        if not self.path.exists():
            return False
        with opened(self.path) as connection:
            found = connection.execute(
                "SELECT 1 FROM audits WHERE bundle = ? AND query_id = ? AND item_id = ?",
                (bundle, query_id, item_id),
            ).fetchone()
        return found is not None

    def reviews(self, bundle: str) -> Reviews:
        """Return the reviews of the matches that were drawn for review."""
        if not self.path.exists():
            return Reviews(0, ())
        with opened(self.path) as connection:
            (n_asked,) = connection.execute(
                "SELECT COUNT(*) FROM audits WHERE bundle = ?", (bundle,)
            ).fetchone()
            rows = connection.execute(
                f"SELECT correct, match_probability, {', '.join(_DRAW)} "  # noqa: S608
                "FROM feedback JOIN audits USING (bundle, query_id, item_id) "
                "WHERE bundle = ? ORDER BY COALESCE(first_received_at, received_at), query_id",
                (bundle,),
            ).fetchall()
        return Reviews(n_asked, tuple(_reviewed(*row) for row in rows))

    def pairs(self, match_fingerprint: str) -> SaidPairs:
        """Return the pairs of all bundles whose probabilities have the given fingerprint.

        If several bundles served a pair, only the last decision on the pair counts.
        """
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
            return pairs_in(connection, match_fingerprint)


def pairs_in(connection: sqlite3.Connection, match_fingerprint: str | None) -> SaidPairs:
    """Return the pairs of a file, possibly from an earlier release; see `FeedbackLog.pairs`."""
    found = columns(connection, "feedback")
    if FITTED_TO.keys() <= found:
        audits = columns(connection, "audits")
        joined = "LEFT JOIN audits USING (bundle, query_id, item_id)" if audits else ""
        audited = "asked_at IS NOT NULL" if audits else "0"
        with_probability = [name for name in ("probability",) if name in audits]
        selection = "selection" if "selection" in found else "NULL"
        with_probability += [name for name in ("draw_probability",) if name in found]
        probability = ", ".join([*with_probability, "1.0", "1.0"])
        rows = connection.execute(
            f"SELECT query_id, item_id, match_log_odds, correct, {audited} "  # noqa: S608
            f"OR {selection} IS 'drawn', {selection} IS 'ordered', COALESCE({probability}) "
            f"FROM feedback {joined} WHERE match_fingerprint = ? ORDER BY received_at",
            (match_fingerprint,),
        ).fetchall()
    else:
        rows = []
    count = "SELECT COUNT(*) FROM feedback" if found else "SELECT 0"
    (n_all,) = connection.execute(count).fetchone()
    last = {(query, item): said for query, item, *said in rows}
    said = np.array(list(last.values()), dtype=np.float64).reshape(-1, 5)
    queries = np.unique([query for query, _ in last], return_inverse=True)[1]
    drawn = said[:, 2] == 1
    weights = np.ones(len(said))
    if drawn.any():
        weights[drawn] = 1 / said[drawn, 4]
        weights[drawn] /= weights[drawn].mean()
    return SaidPairs(
        said[:, 0],
        said[:, 1] == 1,
        queries.astype(np.int64),
        drawn,
        weights,
        (said[:, 3] == 1) & ~drawn,
        n_all - len(rows),
    )


def _decide(connection: sqlite3.Connection, decided: Decided) -> Decided:
    """Record, with a decision, how the decision's query was selected; then store the decision."""
    return _take(connection, cases.selected(connection, _without_own_item(connection, decided)))


def _without_own_item(connection: sqlite3.Connection, decided: Decided) -> Decided:
    """Return the decision without pairs of items that were made from the query itself.

    Such an item is a copy of the query, so its match probability is no evidence.
    """
    same = {"gallery": decided.gallery, "query_id": decided.query_id, "decision": "new"}
    own = {one.item_id for one in decisions.listed(connection, same)}
    return replace(decided, pairs=tuple(one for one in decided.pairs if one.item_id not in own))


def _reviewed(correct: int, match_probability: float, *draw: float | None) -> MatchReview:
    """Return the review of a drawn match; columns without a value get defaults."""
    drawn: dict[str, Any] = {"predicted": 1 - match_probability}
    drawn |= {name: one for name, one in zip(_DRAW, draw, strict=True) if one is not None}
    return MatchReview(not correct, MatchDraw(**drawn))


def _take(connection: sqlite3.Connection, decided: Decided) -> Decided:
    """Append a decision; then store the feedback of the effective decisions on the query."""
    kept = decisions.add(connection, decided)
    if kept.undone_at is None:
        spoken = cases.counted(connection, kept.gallery, kept.query_id, kept)
        _hush(connection, kept.gallery, kept.query_id)
        for one in spoken:
            _say(connection, one)
    return kept


def _hush(connection: sqlite3.Connection, gallery: str, query_id: str) -> bool:
    """If several reviewers must agree on a query, delete the query's pairs and return True.

    After a new decision or an undo, the reviewers may no longer agree. So the caller stores the
    effective decisions again.
    """
    case = cases.find(connection, gallery, query_id)
    if case is None or case.reviewers == 1:
        return False
    made = decisions.listed(connection, {"gallery": gallery, "query_id": query_id})
    connection.executemany(
        "DELETE FROM feedback WHERE bundle = ? AND query_id = ?",
        [(bundle, query_id) for bundle in {one.bundle for one in made}],
    )
    return True


def _say(connection: sqlite3.Connection, decided: Decided) -> None:
    """Store a decision as the last decision on its pairs."""
    connection.executemany(
        "INSERT INTO feedback (gallery, bundle, query_id, item_id, correct, "
        "rank, match_probability, received_at, match_log_odds, match_fingerprint, "
        "first_received_at, selection, draw_probability) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET correct = excluded.correct, rank = excluded.rank, "
        "match_probability = excluded.match_probability, "
        "received_at = excluded.received_at, match_log_odds = excluded.match_log_odds, "
        "match_fingerprint = excluded.match_fingerprint",
        [
            (
                decided.gallery,
                decided.bundle,
                decided.query_id,
                pair.item_id,
                pair.correct,
                pair.rank,
                pair.match_probability,
                decided.decided_at,
                pair.match_log_odds,
                pair.match_fingerprint,
                decided.decided_at,
                # The selection of the query applies only to its first item.
                decided.selection if pair.rank == 1 else "volunteered",
                decided.draw_probability if pair.rank == 1 else None,
            )
            for pair in decided.pairs
        ],
    )
