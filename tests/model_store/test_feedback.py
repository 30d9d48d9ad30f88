"""Reviews of matches, and what has been seen of drift, in one SQLite file."""

from __future__ import annotations

import errno
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.decision import DriftTest, MatchDraw, MatchReview
from model_store.decision.drift import MixtureReference
from model_store.errors import StorageBusy, StorageFull, WriteError, WriteRefused
from model_store.feedback import FeedbackLog, Reviews
from model_store.feedback import file as feedback_file
from model_store.watch_states import DriftStates, SavedDrift
from tests.support.decisions import said


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "feedback.sqlite3"


@pytest.fixture
def log(file: Path) -> FeedbackLog:
    return FeedbackLog(file)


def test_full_disk_stores_no_part_of_a_decision(
    log: FeedbackLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.decide(said("q1", correct=True))
    connect = sqlite3.connect

    def without_room(path: Path, timeout: float) -> sqlite3.Connection:
        connection = connect(path, timeout)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", without_room)
    long = replace(said("q2", correct=True), comment="c" * 100_000)
    with pytest.raises(StorageFull, match="no room on the disk"):
        log.decide(long)
    monkeypatch.undo()
    assert [one.query_id for one in log.decided("g")] == ["q1"]
    log.decide(long)
    assert [one.query_id for one in log.decided("g")] == ["q1", "q2"]


def test_locked_file_is_busy(log: FeedbackLog, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.check()
    monkeypatch.setattr(feedback_file, "WAIT_S", 0.01)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageBusy, match="writing to the feedback file for 10 s"):
            log.decide(said("q1", correct=True))


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EDQUOT, StorageFull), (errno.EACCES, WriteRefused)]
)
def test_directory_that_cannot_be_made_is_told(
    log: FeedbackLog, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[WriteError]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "it said so")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(kind) as told:
        log.check()
    if kind is WriteRefused:
        assert "the feedback file, or its directory, can only be read" in str(told.value)


DRAW = MatchDraw(0.1, 0.2, 0.05, 3, 0.3, 0.04)


def wrong(log: FeedbackLog) -> list[bool]:
    return [one.wrong for one in log.reviews("b").matches]


def test_only_what_was_asked_for_is_a_review(log: FeedbackLog) -> None:
    assert log.reviews("b") == Reviews(0, ())
    log.ask("b", [(query, "i", DRAW) for query in ("q1", "q2", "q3")])
    log.ask("b", [("q1", "i", DRAW)])
    log.decide(said("q2", correct=False))
    log.decide(said("q2", correct=True, item="another"))
    log.decide(said("unasked", correct=False))
    log.decide(said("q1", correct=True, bundle="another"))
    assert (log.reviews("b").n_asked, wrong(log)) == (3, [True])
    assert log.asked("b", "q2", "i")
    assert not log.asked("b", "q2", "another")
    assert not log.asked("another", "q1", "i")


def test_it_does_not_matter_whether_the_word_or_the_question_is_written_first(
    log: FeedbackLog,
) -> None:
    """Another process may have drawn the match, and write so a moment later."""
    log.decide(said("q", correct=False))
    assert log.reviews("b") == Reviews(0, ())
    log.ask("b", [("q", "i", DRAW)])
    assert log.reviews("b") == Reviews(1, (MatchReview(wrong=True, draw=DRAW),))


def test_saying_it_again_moves_no_review_to_the_end(log: FeedbackLog) -> None:
    """Or whoever repeats the errors, and nothing else, would make a row of errors of them."""
    log.ask("b", [(query, "i", DRAW) for query in "abc"])
    for query, correct in (("c", False), ("a", True), ("b", True), ("c", False)):
        log.decide(said(query, correct=correct))
    assert wrong(log) == [True, False, False]
    log.decide(said("c", correct=True))
    assert wrong(log) == [False, False, False]


def test_match_that_two_processes_draw_is_kept_once_with_the_matches_before_both(
    log: FeedbackLog,
) -> None:
    log.ask("b", [("q", "i", DRAW)])
    log.ask("b", [("q", "i", replace(DRAW, predicted=0.2, n_before=2, predicted_before=0.5))])
    log.decide(said("q", correct=True))
    [one] = log.reviews("b").matches
    assert one.draw == replace(DRAW, n_before=5, predicted_before=0.8, squares_before=0.08)


def test_matches_that_an_earlier_release_drew_alike_count_alike(log: FeedbackLog) -> None:
    log.path.parent.mkdir()
    with closing(sqlite3.connect(log.path)) as connection, connection:
        connection.execute(
            "CREATE TABLE audits (bundle TEXT NOT NULL, query_id TEXT NOT NULL, item_id TEXT NOT "
            "NULL, asked_at REAL NOT NULL, PRIMARY KEY (bundle, query_id, item_id)) WITHOUT ROWID"
        )
        connection.execute("INSERT INTO audits VALUES ('b', 'q', 'i', 1.0)")
    log.decide(said("q", correct=False, probability=0.75))
    assert log.reviews("b") == Reviews(1, (MatchReview(wrong=True, draw=MatchDraw(0.25)),))
    assert log.pairs("origin").weights.tolist() == [1.0]


def write_earlier(file: Path) -> None:
    """A file of an earlier release, which lacks columns."""
    file.parent.mkdir()
    with sqlite3.connect(file) as connection:
        connection.execute(
            "CREATE TABLE feedback (gallery TEXT NOT NULL, bundle TEXT NOT NULL, query_id TEXT "
            "NOT NULL, item_id TEXT NOT NULL, correct INTEGER NOT NULL, rank INTEGER NOT NULL, "
            "match_probability REAL NOT NULL, received_at REAL NOT NULL, match_log_odds REAL, "
            "match_fingerprint TEXT, PRIMARY KEY (bundle, query_id, item_id)) WITHOUT ROWID"
        )
        connection.execute(
            "INSERT INTO feedback VALUES ('g', 'b', 'old', 'i', 0, 1, 0.9, 5.0, 2.2, 'origin')"
        )


def test_a_file_of_an_earlier_release_is_read_on(file: Path, log: FeedbackLog) -> None:
    write_earlier(file)
    assert len(log.pairs("origin").correct) == 1  # before anything is written, as the builder does
    log.ask("b", [(query, "i", DRAW) for query in ("old", "new")])
    log.decide(said("new", correct=True))
    assert wrong(log) == [True, False]
    assert len(log.pairs("origin").correct) == 2


def test_several_processes_open_a_file_of_an_earlier_release_at_once(
    file: Path, log: FeedbackLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another adds the columns after this one has found that they are missing."""
    write_earlier(file)
    columns_of = feedback_file.columns

    def columns(connection: sqlite3.Connection, table: str) -> set[str]:
        found = columns_of(connection, table)
        monkeypatch.setattr(feedback_file, "columns", columns_of)
        log.ask("b", [("old", "i", DRAW)])
        return found

    monkeypatch.setattr(feedback_file, "columns", columns)
    log.decide(said("old", correct=True))
    assert wrong(log) == [False]


def drift_of(caller: str, scores: Sequence[float], seen: Sequence[int] = ()) -> SavedDrift:
    generator = np.random.default_rng(0)
    reference = MixtureReference(generator.normal(0, 1, 50), generator.normal(2, 1, 50))
    test = DriftTest(reference)
    for score in scores:
        test.observe(score)
    return SavedDrift(caller, test.state(), np.array(seen, dtype=np.uint64))


def test_drift_is_loaded_as_it_was_saved(file: Path) -> None:
    states = DriftStates(file)
    assert states.load("b") == []
    saved = [drift_of("key a", (0.1, 3.0, np.pi), [2**64 - 1, 0, 7]), drift_of("", (0.5,))]
    states.save("b", [drift_of("key a", (0.1,))])
    states.save("b", saved)
    loaded = {one.caller: one for one in states.load("b")}
    assert set(loaded) == {"key a", ""}
    assert loaded["key a"].seen.tolist() == [2**64 - 1, 0, 7]
    assert loaded["key a"].test == saved[0].test
    assert states.load("another") == []


def test_drift_that_was_saved_before_a_moment_is_not_loaded(file: Path) -> None:
    states = DriftStates(file)
    states.save("b", [drift_of("key a", (0.1,))])
    assert states.load("b", since=time.time() + 60) == []
    assert len(states.load("b", since=time.time() - 60)) == 1


def test_the_callers_that_were_saved_last_are_loaded(file: Path) -> None:
    states = DriftStates(file)
    for caller in ("key a", "key b", "key c"):
        states.save("b", [drift_of(caller, (0.1,))])
    assert [one.caller for one in states.load("b", limit=2)] == ["key b", "key c"]


def test_a_file_with_nothing_but_drift_holds_no_feedback(file: Path) -> None:
    DriftStates(file).save("b", [drift_of("", ())])
    log = FeedbackLog(file)
    assert (len(log.pairs("origin").correct), log.pairs("origin").n_others) == (0, 0)
    assert log.summary("b") is None
    assert log.reviews("b") == Reviews(0, ())
