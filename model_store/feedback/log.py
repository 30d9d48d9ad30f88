"""Users' feedback on matches: kept for the next calibration and to check this one."""

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

_DRAW = tuple(field.name for field in fields(MatchDraw))
"""Columns of a drawn match; the last three are sums over the matches before it."""


@dataclass(frozen=True, slots=True)
class SaidPairs:
    """The feedback to learn from: pairs whose uncorrected probabilities share an origin.

    Attributes
    ----------
    log_odds : (n,) uncorrected.
    correct : (n,) whether users confirmed the pair.
    queries : (n,) number of the query that the pair belongs to.
    drawn : (n,) whether the pair was drawn at random for review.
    weights : (n,) 1 / π of drawn pairs, with the probability π of the draw, divided by their mean;
        1 of other pairs.
    ordered : (n,) whether the review queue gave it, by its verdict; other pairs were chosen by the
        reviewer.
    n_others : pairs that were stored with probabilities of another origin.
    """

    log_odds: NDArray[np.float64]
    correct: NDArray[np.bool_]
    queries: NDArray[np.int64]
    drawn: NDArray[np.bool_]
    weights: NDArray[np.float64]
    ordered: NDArray[np.bool_]
    n_others: int


@dataclass(frozen=True, slots=True)
class FeedbackSummary:
    """The mean of served probabilities compared with users' feedback on them.

    Attributes
    ----------
    n : pairs with feedback.
    probability : mean of the probabilities served for them.
    share : share of them that users confirmed. It equals ``probability`` if probabilities are
        calibrated and users give feedback on all pairs equally often.
    """

    n: int
    probability: float
    share: float


@dataclass(frozen=True, slots=True)
class Reviews:
    """The reviews of matches that were drawn for review.

    Attributes
    ----------
    n_asked : matches drawn for review.
    matches : each match that was reviewed, in the order of the first reviews; the last review
        counts.
    """

    n_asked: int
    matches: tuple[MatchReview, ...]


class FeedbackLog:
    """A SQLite file; each pair counts once, with its last decision."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def decide(self, decided: Decided) -> Decided:
        """Store a decision and its pairs: durable once this returns, with its number.

        It ends the reviewer's lease of the query. Where more than one reviewer has to agree, it
        says nothing of pairs until they do.
        """
        with opened(self.path, writing=True) as connection:
            return _decide(connection, decided)

    def decide_once(self, decided: Decided, *, replayed: bool = False) -> Decided:
        """Keep a decision of a request that may be sent again, see `decide`.

        Where the same is kept already (of the same reviewer, query and item, and not taken back),
        nothing is kept, and that one is returned.

        Parameters
        ----------
        replayed : whether the request is known to have been carried out before, so that one that
            was taken back since is not kept again.
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
        """Undo a decision: the previous decision on its pairs counts again.

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
        """Return the decisions on a gallery after a number, by number; −1 for all of them."""
        if not self.path.exists():
            return []
        with opened(self.path) as connection:
            return decisions.listed(connection, {"gallery": gallery}, after, limit)

    def bring(self, decided: Iterable[Decided]) -> int:
        """Take in decisions from elsewhere, all or none; those that are here already count once.

        Returns
        -------
        How many are new.
        """
        n_new = 0
        with opened(self.path, writing=True) as connection:
            known = {replace(one, number=0) for one in decisions.listed(connection, {})}
            for one in decided:
                if replace(one, number=0) in known:
                    continue
                known.add(replace(one, number=0))
                _take(connection, one)
                n_new += 1
        return n_new

    def summary(self, bundle: str) -> FeedbackSummary | None:
        """Summarise the feedback on a bundle; return None where there is none."""
        if not self.path.exists():
            return None
        with opened(self.path) as connection:
            n, probability, share = connection.execute(
                "SELECT COUNT(*), AVG(match_probability), AVG(correct) FROM feedback "
                "WHERE bundle = ?",
                (bundle,),
            ).fetchone()
        return FeedbackSummary(n, probability, share) if n else None

    def ask(self, bundle: str, matches: Iterable[tuple[str, str, MatchDraw]]) -> None:
        """Keep which matches were drawn for review: a query's and an item's id, and the draw.

        One that another process has drawn already is kept once, with the matches before both.
        """
        now = time.time()
        rows = [
            (bundle, query_id, item_id, now, *(getattr(draw, name) for name in _DRAW))
            for query_id, item_id, draw in matches
        ]
        sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in _DRAW[3:])
        marks = ", ".join("?" * (4 + len(_DRAW)))
        with opened(self.path) as connection:
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
        """Return the decisions on the matches that were drawn for review."""
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
        """All pairs, of whichever bundle, whose probabilities came from what is named.

        One that several bundles served counts once, with the last word on it.
        """
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)) as connection:
            return pairs_in(connection, match_fingerprint)


def pairs_in(connection: sqlite3.Connection, match_fingerprint: str | None) -> SaidPairs:
    """Return the pairs of a file that may be of an earlier release, see `FeedbackLog.pairs`."""
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
    """Store a decision with the way in which its query was chosen."""
    return _take(connection, cases.selected(connection, decided))


def _reviewed(correct: int, match_probability: float, *draw: float | None) -> MatchReview:
    """Return the review of a drawn match; an earlier release kept no probability."""
    drawn: dict[str, Any] = {"predicted": 1 - match_probability}
    drawn |= {name: one for name, one in zip(_DRAW, draw, strict=True) if one is not None}
    return MatchReview(not correct, MatchDraw(**drawn))


def _take(connection: sqlite3.Connection, decided: Decided) -> Decided:
    """Append a decision, and apply those that count by now to their pairs."""
    kept = decisions.add(connection, decided)
    if kept.undone_at is None:
        spoken = cases.counted(connection, kept.gallery, kept.query_id, kept)
        _hush(connection, kept.gallery, kept.query_id)
        for one in spoken:
            _say(connection, one)
    return kept


def _hush(connection: sqlite3.Connection, gallery: str, query_id: str) -> bool:
    """Delete the pairs of a query that several reviewers decide; return whether it is one.

    They may no longer agree, so that only decisions that count by now are applied again.
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
    """Make a decision the last one on its pairs."""
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
                # Of another item than the first the reviewer speaks because of what it is.
                decided.selection if pair.rank == 1 else "volunteered",
                decided.draw_probability if pair.rank == 1 else None,
            )
            for pair in decided.pairs
        ],
    )
