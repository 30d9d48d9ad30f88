"""The review queue: what is kept, who gets it, when it is settled, and what is gone."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_store.errors import ConfigError
from model_store.feedback import (
    AnsweredQueries,
    AnsweredQuery,
    Bounds,
    Case,
    CaseReason,
    Decided,
    DecisionKind,
    FeedbackLog,
    NewCase,
    Pair,
    Picture,
    ReviewQueue,
)
from model_store.feedback.decisions import from_csv, from_jsonl, to_csv, to_jsonl
from model_store.feedback.queue import RANDOM_TURN
from model_store.table import HalfRows

ROOMY = Bounds(retention_s=1e6, most=1000, most_bytes=2**20)
NOW = 2e9
"""A moment in 2033, so that nothing is too old."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "feedback.sqlite3"


@pytest.fixture
def queue(file: Path) -> ReviewQueue:
    return ReviewQueue(file, ROOMY)


@pytest.fixture
def log(file: Path) -> FeedbackLog:
    return FeedbackLog(file)


def embedded(query_id: str, value: float = 1.0) -> AnsweredQuery:
    rows = (np.full((1, width), value, np.float32) for width in (3, 3, 5))
    return AnsweredQuery(query_id, *(HalfRows.of(part).to_bytes()[0] for part in rows))


def case(
    query_id: str,
    *,
    log_odds: float | None = 0.0,
    reason: CaseReason = "ambiguous",
    drawn: bool = False,
    draw_probability: float | None = None,
    reviewers: int = 1,
    kept_at: float = NOW,
    picture: bytes | None = None,
    value: float = 1.0,
) -> NewCase:
    kept = Case(
        gallery="g",
        encoder="e",
        bundle="b",
        query_id=query_id,
        reason=reason,
        drawn=drawn,
        draw_probability=draw_probability,
        verdict="ambiguous",
        found=(),
        no_match_probability=0.5,
        match_log_odds=log_odds,
        match_fingerprint="f",
        reviewers=reviewers,
        wanted=reviewers,
        kept_at=kept_at,
    )
    shown = None if picture is None else Picture(picture, "image/png")
    return NewCase(kept, embedded(query_id, value), shown)


def decide(
    log: FeedbackLog,
    query_id: str,
    reviewer: str | None,
    decision: DecisionKind = "this_item",
    item_id: str | None = "i",
    label: str | None = "cat",
) -> Decided:
    pair = Pair("i", decision == "this_item", 1, 0.5, 0.0, "f")
    decided = Decided(
        "g", "b", query_id, decision, item_id, label, reviewer, None, (pair,), decided_at=NOW
    )
    return log.decide(decided)


def lease(queue: ReviewQueue, reviewer: str, n: int = 1, seconds: float = 60) -> list[str]:
    return [one.case.query_id for one in queue.lease("g", "e", reviewer, n, seconds)]


def n_pairs(log: FeedbackLog) -> int:
    return len(log.pairs("f").correct)


def test_two_reviewers_do_not_get_the_same_and_a_lease_ends(queue: ReviewQueue) -> None:
    queue.add([case("a"), case("b")])
    assert sorted(lease(queue, "ann") + lease(queue, "bob")) == ["a", "b"]
    assert lease(queue, "eve", 9) == []
    assert queue.give_back("g", "a", "ann") or queue.give_back("g", "a", "bob")
    assert lease(queue, "eve", 9, seconds=-1) == ["a"]  # which has ended by now
    assert lease(queue, "dan", 9) == ["a"]
    assert not queue.give_back("g", "a", "nobody")


def test_a_decision_settles_a_case_and_says_how_it_came_about(
    queue: ReviewQueue, log: FeedbackLog
) -> None:
    queue.add([case("a"), case("b", drawn=True), case("c")])
    assert sorted(lease(queue, "ann", 2)) != ["c"]
    queue.lease("g", "e", "ann", 9, 60)
    made = [decide(log, "a", "ann"), decide(log, "b", "ann"), decide(log, "c", "bob")]
    assert [one.selection for one in made] == ["ordered", "drawn", "volunteered"]
    assert queue.counts("g") == {("ambiguous", "settled"): 3}
    pairs = log.pairs("f")
    assert (pairs.ordered.sum(), pairs.drawn.sum(), n_pairs(log)) == (1, 1, 3)
    assert [one.selection for one in from_csv(to_csv(log.decided("g")))] == [
        "ordered",
        "drawn",
        "volunteered",
    ]
    log.undo("g", made[0].number)
    assert [one.query_id for one in queue.listed("g", {}, "open")] == ["a"]
    assert lease(queue, "bob", 9) == ["a"]


def test_where_two_have_to_agree_a_third_opinion_settles_a_conflict(
    queue: ReviewQueue, log: FeedbackLog
) -> None:
    queue.add([case("a", reviewers=2)])
    assert lease(queue, "ann") == lease(queue, "bob") == ["a"]
    assert lease(queue, "eve") == []
    decide(log, "a", "ann")
    assert (lease(queue, "ann"), lease(queue, "eve"), n_pairs(log)) == ([], [], 0)
    decide(log, "a", "bob", "none_of_these", None, None)
    assert (n_pairs(log), queue.counts("g")) == (0, {("ambiguous", "open"): 1})
    assert lease(queue, "bob") == []
    assert lease(queue, "eve") == ["a"]
    third = decide(log, "a", "eve", "new", None, None)
    assert log.pairs("f").correct.tolist() == [False]
    assert queue.counts("g") == {("ambiguous", "settled"): 1}
    log.undo("g", third.number)
    assert (n_pairs(log), queue.counts("g")) == (0, {("ambiguous", "open"): 1})


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [
        (("this_item", "i", "cat"), ("that_item", "j", "cat"), True),
        (("this_item", "i", None), ("that_item", "j", None), False),
        (("none_of_these", None, None), ("new", None, None), True),
        (("not_this_item", "i", "cat"), ("not_this_item", "j", "cat"), False),
        (("not_this_item", "i", "cat"), ("none_of_these", None, None), False),
    ],
)
def test_who_agrees(
    queue: ReviewQueue,
    log: FeedbackLog,
    first: tuple[DecisionKind, str | None, str | None],
    second: tuple[DecisionKind, str | None, str | None],
    agree: bool,
) -> None:
    queue.add([case("a", reviewers=2)])
    decide(log, "a", "ann", *first)
    decide(log, "a", "bob", *second)
    assert (queue.listed("g", {}, "open") == []) == agree


def test_one_reviewer_does_not_agree_with_themselves(queue: ReviewQueue, log: FeedbackLog) -> None:
    queue.add([case("a", reviewers=2), case("b", reviewers=2)])
    for reviewer in ("ann", "ann"):
        decide(log, "a", reviewer)
    for unnamed in (None, None):
        decide(log, "b", unnamed)
    assert len(queue.listed("g", {}, "open")) == 2


def test_a_contradicted_match_gets_a_second_opinion(queue: ReviewQueue, log: FeedbackLog) -> None:
    queue.add([case("a", reason="random", drawn=True)])
    assert lease(queue, "ann") == ["a"]
    decide(log, "a", "ann", "not_this_item")
    queue.contradict(replace(case("a"), case=replace(case("a").case, reason="contradicted")))
    assert lease(queue, "ann") == []
    assert lease(queue, "bob") == ["a"]
    assert log.pairs("f").correct.tolist() == [False]  # until it is overruled
    assert decide(log, "a", "bob").selection == "volunteered"
    decide(log, "a", "eve")
    assert log.pairs("f").correct.tolist() == [True]
    assert queue.counts("g") == {("contradicted", "settled"): 1}


def test_cases_drawn_at_random_are_not_starved_and_come_oldest_first(queue: ReviewQueue) -> None:
    queue.add([case(f"o{n:02}", log_odds=0.0) for n in range(40)])
    queue.add([case(f"d{n}", log_odds=9.0, drawn=True) for n in range(4)])
    got = [one for _ in range(16) for one in lease(queue, "ann")]
    assert [one for one in got if one[0] == "d"] == ["d0", "d1", "d2", "d3"]
    assert [place for place, one in enumerate(got) if one[0] == "d"] == [
        RANDOM_TURN * n for n in range(4)
    ]


def test_cases_not_drawn_come_oldest_first_with_those_begun_before_all(
    queue: ReviewQueue, log: FeedbackLog
) -> None:
    queue.add([case("a"), case("b"), case("c", reviewers=2)])
    decide(log, "c", "bob")
    assert lease(queue, "ann", 9) == ["c", "a", "b"]


def test_decision_on_lease_of_drawn_case_keeps_probability_of_draw(
    queue: ReviewQueue, log: FeedbackLog
) -> None:
    """Its pair weighs 1 / π, divided by the mean; other pairs weigh 1."""
    new = [case("a", drawn=True, draw_probability=0.1), case("b", drawn=True, draw_probability=0.4)]
    queue.add([*new, case("c")])
    assert len(lease(queue, "ann", 9)) == 3
    made = [decide(log, name, "ann") for name in "abc"]
    assert [one.draw_probability for one in made] == [0.1, 0.4, None]
    assert sorted(log.pairs("f").weights.tolist()) == [0.4, 1.0, 1.6]
    assert from_csv(to_csv(log.decided("g")))[0].draw_probability == 0.1
    assert from_jsonl(to_jsonl(log.decided("g")))[1].draw_probability == 0.4
    assert decide(log, "a", "eve").draw_probability is None  # without a lease


@pytest.mark.parametrize("said", ["0", "1.5", "often"])
def test_import_of_decision_with_impossible_draw_probability_is_refused(said: str) -> None:
    line = {"gallery": "g", "bundle": "b", "query_id": "q", "decision": "none_of_these"}
    text = json.dumps({**line, "draw_probability": said})
    with pytest.raises(ConfigError, match="Line 1 cannot be read"):
        from_jsonl(text)


def test_file_of_release_that_drew_all_alike_is_read(file: Path, queue: ReviewQueue) -> None:
    queue.add([case("a", drawn=True)])
    with sqlite3.connect(file) as connection:
        for column in ("draw_probability", "drawn_evenly"):
            connection.execute(f"ALTER TABLE cases DROP COLUMN {column}")
    [kept] = queue.listed("g", {})
    assert (kept.drawn, kept.drawn_evenly, kept.draw_probability) == (True, True, None)
    assert lease(queue, "ann") == ["a"]


def test_bounds_hold_and_settled_and_undrawn_cases_go_first(file: Path, log: FeedbackLog) -> None:
    queue = ReviewQueue(file, Bounds(retention_s=1e6, most=3, most_bytes=100))
    first = [case("settled"), case("sure", log_odds=12.0), case("drawn", log_odds=9.0, drawn=True)]
    assert queue.add(first) == {"kept": 3, "expired": 0, "displaced": 0}
    decide(log, "settled", "ann")
    assert queue.add([case("near"), case("nearer")])["displaced"] == 2
    assert [one.query_id for one in queue.listed("g", {})] == ["drawn", "near", "nearer"]
    queue.add([case("big", picture=b"x" * 101)])
    assert "big" not in {one.query_id for one in queue.listed("g", {})}


def test_cases_expire_with_what_was_kept_of_them(file: Path) -> None:
    queue = ReviewQueue(file, ROOMY)
    queue.add([case("old", kept_at=5.0, picture=b"OLD-PICTURE"), case("a", picture=b"PICTURE")])
    assert [one.query_id for one in queue.listed("g", {})] == ["a"]
    assert AnsweredQueries(file, 0).find("g", "e", "old") is None
    assert AnsweredQueries(file, 0).find("g", "e", "a") == embedded("a")
    assert b"OLD-PICTURE" not in file.read_bytes()
    assert queue.picture("g", "a") == Picture(b"PICTURE", "image/png")


def test_what_is_deleted_on_request_is_not_in_the_file_any_more(
    file: Path, queue: ReviewQueue, log: FeedbackLog
) -> None:
    value = 0.4321
    picture = np.random.default_rng(0).bytes(50_000)
    queue.add([case("a", picture=picture, value=value), case("b")])
    lease(queue, "ann", 9)
    decide(log, "a", "ann")
    stored = embedded("a", value)
    assert picture[-64:] in file.read_bytes()
    assert stored.mean in file.read_bytes()
    assert queue.forget("g", "a")
    kept = file.read_bytes()
    assert not any(part in kept for part in (picture[:64], picture[-64:], stored.mean))
    assert queue.picture("g", "a") is None
    assert not queue.forget("g", "a")
    assert [one.query_id for one in log.decided("g")] == ["a"]  # which say nothing of the picture


def test_one_that_was_answered_before_it_was_forgotten_is_kept_no_more(
    queue: ReviewQueue,
) -> None:
    """By another process, say, which writes its cases a little later."""
    late = case("a", picture=b"x")
    assert not queue.forget("g", "a")
    assert queue.add([late])["kept"] == 0
    assert queue.find("g", "a") is None
    assert queue.add([case("a"), case("b")])["kept"] == 2


def test_a_case_without_a_picture_gets_one(queue: ReviewQueue) -> None:
    queue.add([case("a")])
    assert queue.add([case("a", picture=b"x")])["kept"] == 0
    assert queue.picture("g", "a") == Picture(b"x", "image/png")
    queue.add([case("a", picture=b"y")])
    assert queue.picture("g", "a") == Picture(b"x", "image/png")


def test_embeddings_of_cases_are_read_by_reason(queue: ReviewQueue, log: FeedbackLog) -> None:
    queue.add([case("a", reason="absent", value=2.0), case("b"), case("c", reason="absent")])
    decide(log, "c", "ann")
    kept = queue.embedded("g", "e", ("absent",))
    assert kept.query_ids == ("a", "c")
    assert kept.is_open.tolist() == [True, False]
    assert kept.kept_at.tolist() == [NOW, NOW]
    np.testing.assert_array_equal(kept.mean, [[2.0] * 3, [1.0] * 3])
    assert kept.features.shape == (2, 5)
    assert len(queue.embedded("g", "another").query_ids) == 0
    assert len(queue.embedded("g", "e").query_ids) == 3


def test_what_reviewers_agreed_on_counts_no_more_when_one_thinks_better_of_it(
    queue: ReviewQueue, log: FeedbackLog
) -> None:
    queue.add([case("a", reviewers=2)])
    for reviewer in ("ann", "bob"):
        decide(log, "a", reviewer)
    assert n_pairs(log) == 1
    decide(log, "a", "ann", "none_of_these", None, None)
    assert (n_pairs(log), queue.counts("g")) == (0, {("ambiguous", "open"): 1})
    decide(log, "a", "eve")
    assert log.pairs("f").correct.tolist() == [True]


def test_who_is_left_alone_by_one_that_is_taken_back_says_nothing(
    queue: ReviewQueue, log: FeedbackLog
) -> None:
    """Though the two had spoken of other items, of the same label."""
    queue.add([case("a", reviewers=2)])
    ann = decide(log, "a", "ann")
    other = replace(ann, number=0, reviewer="bob", decision="that_item", item_id="j")
    log.decide(replace(other, pairs=(Pair("j", True, 2, 0.5, 0.0, "f"),)))
    assert n_pairs(log) == 2
    log.undo("g", ann.number)
    assert log.summary("b") is None
