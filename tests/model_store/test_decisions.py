"""Decisions of reviewers: kept one after another, taken back, exported and imported."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.errors import ConfigError, DecisionNotFound, KeyReused
from model_store.feedback import AnsweredQueries, AnsweredQuery, Decided, FeedbackLog, Pair
from model_store.feedback.decisions import from_csv, from_jsonl, to_csv, to_jsonl
from model_store.gallery.protocol import Retry
from model_store.table import HalfRows


@pytest.fixture
def log(tmp_path: Path) -> FeedbackLog:
    return FeedbackLog(tmp_path / "feedback.sqlite3")


def decided(
    query: str = "q", *, correct: bool = True, reviewer: str | None = "ann", at: float = 1e9
) -> Decided:
    pair = Pair("item", correct, 1, 0.75, 1.0986122886681098, "f" * 64)
    return Decided(
        gallery="g",
        bundle="b",
        query_id=query,
        decision="this_item" if correct else "not_this_item",
        item_id="item",
        label='a, "b"\nc',
        reviewer=reviewer,
        comment=None,
        pairs=(pair,),
        decided_at=at,
    )


def test_key_of_a_request_is_kept_for_a_day(log: FeedbackLog) -> None:
    retry, hour = Retry("key", "request"), 3600.0
    for passed, number in ((0.0, 1), (23 * hour, 1), (25 * hour, 2), (26 * hour, 2)):
        assert log.decide(decided(at=1e9 + passed), retry).number == number
    with pytest.raises(KeyReused):
        log.decide(decided(at=1e9 + 26 * hour), Retry("key", "another"))
    assert len(log.decided("g")) == 2
    other = replace(decided(at=1e9 + 26 * hour), gallery="h")
    assert log.decide(other, retry).number == 3  # each gallery has its own keys


def said(log: FeedbackLog) -> list[tuple[str, int]]:
    with sqlite3.connect(log.path) as connection:
        return connection.execute("SELECT query_id, correct FROM feedback").fetchall()


def test_the_last_word_counts_and_taken_back_the_one_before(log: FeedbackLog) -> None:
    first = log.decide(decided())
    second = log.decide(decided(correct=False, reviewer="bob"))
    assert (first.number, second.number) == (1, 2)
    assert said(log) == [("q", 0)]
    undone = log.undo("g", second.number)
    assert undone.undone_at is not None
    assert said(log) == [("q", 1)]
    assert log.undo("g", second.number) == undone  # once is enough
    log.undo("g", first.number)
    assert said(log) == []
    kept = log.decided("g")
    assert [one.number for one in kept] == [1, 2]
    assert [one.reviewer for one in kept] == ["ann", "bob"]
    assert all(one.undone_at is not None for one in kept)
    assert log.decided("g", after=1, limit=1) == kept[1:]
    with pytest.raises(DecisionNotFound, match="No decision 2 on this gallery"):
        log.undo("other", 2)


def test_a_file_of_an_earlier_release_takes_decisions(log: FeedbackLog) -> None:
    with sqlite3.connect(log.path) as connection:
        connection.execute(
            "CREATE TABLE feedback (gallery TEXT, bundle TEXT, query_id TEXT, item_id TEXT, "
            "correct INTEGER, rank INTEGER, match_probability REAL, received_at REAL, "
            "PRIMARY KEY (bundle, query_id, item_id)) WITHOUT ROWID"
        )
    assert log.decide(decided()).number == 1
    assert said(log) == [("q", 1)]


@pytest.mark.parametrize(("write", "read"), [(to_csv, from_csv), (to_jsonl, from_jsonl)])
def test_what_is_exported_is_imported_as_it_was(
    log: FeedbackLog, tmp_path: Path, write: object, read: object
) -> None:
    assert callable(write)
    assert callable(read)
    log.decide(decided())
    log.decide(decided("other", correct=False, reviewer=None))
    log.undo("g", 1)
    kept = log.decided("g")
    text = write(kept)
    brought = read(text)
    assert [replace(one, number=0) for one in kept] == brought
    elsewhere = FeedbackLog(tmp_path / "elsewhere" / "feedback.sqlite3")
    assert elsewhere.bring(brought) == 2
    assert elsewhere.bring(brought) == 0
    assert elsewhere.decided("g") == kept
    assert said(elsewhere) == said(log) == [("other", 0)]


def test_a_table_of_people_needs_four_columns() -> None:
    text = "gallery,bundle,query_id,decision,reviewer\ng,b,q,none_of_these,ann\n"
    (one,) = from_csv(text)
    assert (one.decision, one.reviewer, one.item_id, one.pairs) == (
        "none_of_these",
        "ann",
        None,
        (),
    )


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("comment", "blue, not green", "Line 2 has more values"),
        ("comment,comment", "blue,green", r"columns of one name: \['comment'\]"),
    ],
)
def test_row_of_decisions_that_would_lose_a_value_is_refused(
    header: str, row: str, said: str
) -> None:
    text = f"gallery,bundle,query_id,decision,{header}\ng,b,q,none_of_these,{row}\n"
    with pytest.raises(ConfigError, match=said):
        from_csv(text)


def test_empty_cells_after_a_decision_are_left_out() -> None:
    (one,) = from_csv("gallery,bundle,query_id,decision\ng,b,q,none_of_these,,\n")
    assert one.decision == "none_of_these"


GOOD = '{"gallery": "g", "bundle": "b", "query_id": "q", "decision": "new"'


@pytest.mark.parametrize(
    ("text", "said_of_it"),
    [
        ('{"gallery": "g"}', "Line 1 is not a decision: wanted texts"),
        ("\nnonsense", "Line 2 is not JSON"),
        ("[1]", "Line 1 is not a decision"),
        (GOOD + ', "colour": 1}', r"unknown fields \['colour'\]"),
        (GOOD + ', "decided_at": "?"}', "cannot be read"),
    ],
)
def test_a_bad_line_is_named(text: str, said_of_it: str) -> None:
    with pytest.raises(ConfigError, match=said_of_it):
        from_jsonl(text)


def test_answered_queries_are_kept_for_as_long_as_their_owner_chose(tmp_path: Path) -> None:
    path = tmp_path / "feedback.sqlite3"
    rows = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    parts = [HalfRows.of(row[None]).to_bytes()[0] for row in rows]
    query = AnsweredQuery("q", *parts)
    kept = AnsweredQueries(path, 3600)
    assert kept.find("g", "e", "q") is None
    kept.add("g", "e", [query])
    found = kept.find("g", "e", "q")
    assert found is not None
    for part, row in zip(found.rows(), rows, strict=True):
        np.testing.assert_allclose(part.whole()[0], row, atol=2**-11 * np.abs(row).max())
    assert kept.find("g", "another encoder", "q") is None
    assert AnsweredQueries(path, -1).find("g", "e", "q") is None
    assert kept.forget("g", "q")
    assert not kept.forget("g", "q")
    AnsweredQueries(path, 3600).add("g", "e", [query])
    AnsweredQueries(path, -1).add("g", "e", [])
    assert kept.find("g", "e", "q") is None
