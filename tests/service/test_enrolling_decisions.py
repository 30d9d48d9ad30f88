"""A decision that makes an item of its query: both, or neither; sent again, it is completed."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.directory import activate
from model_store.errors import StorageFull
from model_store.feedback import FeedbackLog, ReviewQueue
from service.client import VouchClient
from service.schemas import ItemOfQuery
from service.serving import engine
from service.serving.registry import Galleries
from service.serving.reviewing import RetainedQueries
from tests.end_to_end.keys import KeysFile, bearer
from tests.end_to_end.processes import Redis
from tests.end_to_end.questions import search
from tests.support.narrowing import not_none
from tests.support.waiting import TIMEOUT_S

StartClient = Callable[..., TestClient]

FEEDBACK = "/v1/galleries/digits/feedback"
ITEM = {"id": "new/1", "label": "new", "metadata": {"seen": 2026}}
KEPT: dict[str, Any] = {"review_reasons": ["absent", "alien", "random"], "audit_share": 1.0}


@pytest.fixture
def changing(bundle: Bundle, digits_bundle: Path, tmp_path: Path) -> Bundle:
    """The digits, that take changes."""
    root = tmp_path / "bundles"
    shutil.copytree(digits_bundle, root / digits_bundle.name)
    activate(root, digits_bundle.name)
    return replace(bundle.within(root), directory=root / digits_bundle.name)


@pytest.fixture
def client(start: StartClient, changing: Bundle, tmp_path: Path) -> TestClient:
    """They are served, and queries are kept."""
    return start(changing, feedback=tmp_path / "feedback.sqlite3", **KEPT)


def said_of(client: TestClient, image: bytes, **more: Any) -> dict[str, Any]:
    query = search(client, image).json()["query"]["id"]
    return {"query_id": query, "decision": "new", "reviewer": "ann", "item": ITEM, **more}


def decisions(client: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(FEEDBACK).json()["decisions"]
    return found


def test_one_request_decides_and_enrols(client: TestClient, stranger: bytes) -> None:
    said = said_of(client, stranger)
    answer = client.post(FEEDBACK, json=said).json()
    assert (answer["decision"], answer["item_id"], answer["correct"]) == ("new", "new/1", None)
    assert (answer["item"]["id"], answer["item"]["existed"]) == ("new/1", False)
    (decision,) = decisions(client)
    assert (decision["item_id"], decision["label"]) == ("new/1", "new")
    assert decision["reviewer"] == "ann"
    first = search(client, stranger).json()["results"][0]
    assert (first["id"], first["label"], first["metadata"]) == ("new/1", "new", {"seen": 2026})
    assert first["similarity"] == pytest.approx(1, abs=1e-3)  # kept in half precision
    thumbnail = client.get(first["thumbnail_url"])
    assert len(thumbnail.content) > 100, "the picture of the case, not a grey pixel"


def test_sent_again_it_is_done_once(client: TestClient, stranger: bytes) -> None:
    said = said_of(client, stranger)
    first = client.post(FEEDBACK, json=said).json()
    again = client.post(FEEDBACK, json=said).json()
    assert again["number"] == first["number"]
    assert again["item"]["existed"]
    headers = {"Idempotency-Key": "one"}
    keyed = client.post(FEEDBACK, json=said, headers=headers)
    replayed = client.post(FEEDBACK, json=said, headers=headers)
    assert replayed.headers["Idempotency-Replayed"] == "true"
    assert replayed.json() == keyed.json()
    assert len(decisions(client)) == 1


def pairs(log: Path) -> dict[str, Any]:
    with sqlite3.connect(log) as connection:
        found = connection.execute("SELECT item_id, correct, match_probability FROM feedback")
        return {item_id: (bool(correct), served) for item_id, correct, served in found}


def test_item_made_from_a_query_is_not_rejected_by_the_next_reviewer(
    client: TestClient, stranger: bytes, tmp_path: Path
) -> None:
    answer = search(client, stranger).json()
    served = answer["results"][0]
    said = {"query_id": answer["query"]["id"], "decision": "new"}
    client.post(FEEDBACK, json={**said, "reviewer": "ann", "item": ITEM})
    client.post(FEEDBACK, json={**said, "reviewer": "bob"})
    expected = {served["id"]: (False, pytest.approx(served["match_probability"], abs=0.01))}
    assert pairs(tmp_path / "feedback.sqlite3") == expected


def test_item_made_from_a_query_gets_no_feedback_from_the_query(
    client: TestClient, stranger: bytes, tmp_path: Path
) -> None:
    """Also after another search, which finds the item."""
    said = said_of(client, stranger)
    client.post(FEEDBACK, json=said)
    before = pairs(tmp_path / "feedback.sqlite3")
    assert search(client, stranger).json()["results"][0]["id"] == ITEM["id"]
    kept = client.post(FEEDBACK, json={**said, "reviewer": "bob", "item": None}).json()
    assert kept["number"] == 2
    assert pairs(tmp_path / "feedback.sqlite3") == before


@pytest.mark.parametrize("cache_bytes", [2**20, 0])
def test_item_added_after_the_answer_gets_no_feedback(
    start: StartClient, changing: Bundle, stranger: bytes, tmp_path: Path, cache_bytes: int
) -> None:
    """The query is in the cache, or in the review queue only."""
    log = tmp_path / "feedback.sqlite3"
    client = start(changing, feedback=log, cache_bytes=cache_bytes, **KEPT)
    answer = search(client, stranger).json()
    served = answer["results"][0]
    said = {"query_id": answer["query"]["id"], "reviewer": "ann"}
    client.get("/v1/galleries/digits/review")  # writes the waiting queries
    put = client.put("/v1/galleries/digits/items/later", files={"image": stranger})
    assert put.status_code == 200
    refused = client.post(FEEDBACK, json={**said, "decision": "this_item", "item_id": "later"})
    assert (refused.status_code, refused.json()["code"]) == (404, "item_not_found")
    client.post(FEEDBACK, json={**said, "decision": "none_of_these"})
    expected = {served["id"]: (False, pytest.approx(served["match_probability"], abs=0.01))}
    assert pairs(log) == expected


@pytest.mark.parametrize("reasons", [KEPT["review_reasons"], []])
def test_item_added_after_the_answer_gets_no_feedback_after_a_compaction(
    start: StartClient, changing: Bundle, stranger: bytes, tmp_path: Path, reasons: list[str]
) -> None:
    log = tmp_path / "feedback.sqlite3"
    client = start(changing, feedback=log, review_reasons=reasons)
    query = search(client, stranger).json()["query"]["id"]
    client.put("/v1/galleries/digits/items/later", files={"image": stranger})
    client.post("/v1/galleries/digits/compact").raise_for_status()
    said = {"query_id": query, "decision": "none_of_these"}
    client.post(FEEDBACK, json=said).raise_for_status()
    assert pairs(log) == {}


def test_served_item_of_a_case_gets_feedback_after_a_compaction(
    client: TestClient, stranger: bytes, digit: bytes, tmp_path: Path
) -> None:
    answer = search(client, stranger).json()
    client.get("/v1/galleries/digits/review")  # writes the waiting queries
    client.put("/v1/galleries/digits/items/other", files={"image": digit})
    client.post("/v1/galleries/digits/compact").raise_for_status()
    said = {"query_id": answer["query"]["id"], "decision": "none_of_these"}
    client.post(FEEDBACK, json=said).raise_for_status()
    assert list(pairs(tmp_path / "feedback.sqlite3")) == [answer["results"][0]["id"]]


def test_item_that_a_later_search_finds_gets_feedback(
    start: StartClient, changing: Bundle, stranger: bytes, tmp_path: Path
) -> None:
    client = start(changing, feedback=tmp_path / "feedback.sqlite3")
    search(client, stranger)
    client.put("/v1/galleries/digits/items/later", files={"image": stranger})
    answer = search(client, stranger).json()
    first = answer["results"][0]
    assert first["id"] == "later"
    said = {"query_id": answer["query"]["id"], "decision": "this_item", "item_id": "later"}
    kept = client.post(FEEDBACK, json=said).json()
    assert (kept["rank"], kept["match_probability"]) == (1, first["match_probability"])


def test_a_query_that_waits_to_be_kept_is_enrolled(
    start: StartClient,
    changing: Bundle,
    stranger: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was answered while others were being written, which made room for what comes."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()
    counts_of, keep = ReviewQueue.counts, RetainedQueries.keep

    def counts(queue: ReviewQueue, gallery: str) -> Any:
        begun.set()
        assert may_end.wait(TIMEOUT_S)
        return counts_of(queue, gallery)

    async def kept(queries: RetainedQueries) -> None:
        await keep(queries)
        ended.set()

    monkeypatch.setattr(ReviewQueue, "counts", counts)
    monkeypatch.setattr(RetainedQueries, "keep", kept)
    client = start(changing, feedback=tmp_path / "feedback.sqlite3", canary_period_s=1, **KEPT)
    assert begun.wait(TIMEOUT_S)
    said = said_of(client, stranger)
    may_end.set()
    assert ended.wait(TIMEOUT_S)
    assert client.post(FEEDBACK, json=said).json()["item"]["id"] == "new/1"


@pytest.mark.parametrize("kept", [KEPT, {"query_retention_s": 3600}], ids=["case", "embedding"])
def test_another_process_enrols_a_query_right_after_its_answer(
    start: StartClient,
    changing: Bundle,
    stranger: bytes,
    tmp_path: Path,
    redis_server: Redis,
    monkeypatch: pytest.MonkeyPatch,
    kept: dict[str, Any],
) -> None:
    monkeypatch.setattr(engine, "WRITTEN_WITHIN_S", TIMEOUT_S)  # for a slow disk
    given = {"feedback": tmp_path / "feedback.sqlite3", "canary_period_s": 600, **kept}
    given |= {"redis_url": redis_server.url, "redis_timeout_s": 60}
    one, other = (start(open_bundle(not_none(changing.root), "cpu", 1), **given) for _ in range(2))
    answer = other.post(FEEDBACK, json=said_of(one, stranger)).json()
    assert answer["item"]["id"] == "new/1"


def test_what_cannot_be_written_is_not_decided(
    client: TestClient, stranger: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise StorageFull("The disk is full.")

    said = said_of(client, stranger)
    with monkeypatch.context() as patched:
        patched.setattr(Galleries, "commit", full)
        assert client.post(FEEDBACK, json=said).status_code == 507
    (taken_back,) = decisions(client)
    assert taken_back["undone_at"] is not None
    assert client.get("/v1/galleries/digits/items/new/1").status_code == 404
    assert client.post(FEEDBACK, json=said).status_code == 200
    assert [one["undone_at"] is None for one in decisions(client)] == [False, True]


def test_what_a_crash_has_parted_is_completed(
    client: TestClient, stranger: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service was killed when the decision was on the disk, and the item was not."""

    async def killed(*_: object) -> None:
        raise OSError("killed")

    said = said_of(client, stranger)
    with monkeypatch.context() as patched:
        patched.setattr(Galleries, "commit", killed)
        patched.setattr(FeedbackLog, "undo", lambda *_: None)
        assert client.post(FEEDBACK, json=said).status_code == 500
    (parted,) = decisions(client)
    assert parted["undone_at"] is None
    completed = client.post(FEEDBACK, json=said).json()
    assert completed["number"] == parted["number"]
    assert not completed["item"]["existed"]
    assert decisions(client) == [parted]
    (pair,) = FeedbackLog(tmp_path / "feedback.sqlite3").decided("digits")[0].pairs
    assert pair.item_id != "new/1", "it is the first item that was wrong, not the new one"


def test_of_a_query_that_is_cached_alone_nothing_is_enrolled(
    start: StartClient, changing: Bundle, stranger: bytes, tmp_path: Path
) -> None:
    client = start(changing, feedback=tmp_path / "feedback.sqlite3")
    refused = client.post(FEEDBACK, json=said_of(client, stranger))
    assert refused.status_code == 404
    assert "VOUCH_QUERY_RETENTION_S" in refused.json()["detail"]
    assert decisions(client) == []


def test_reviewers_who_may_not_write_decide_without_an_item(
    start: StartClient, changing: Bundle, stranger: bytes, tmp_path: Path, keys_file: KeysFile
) -> None:
    keys = {"review": keys_file.make("review"), "write": keys_file.make("write")}
    client = start(changing, feedback=tmp_path / "f.sqlite3", keys=keys_file.path, **KEPT)
    client.headers.update(bearer(keys["review"]))
    said = said_of(client, stranger)
    assert client.post(FEEDBACK, json=said).status_code == 403
    assert client.post(FEEDBACK, json={**said, "item": None}).status_code == 200
    assert client.post(FEEDBACK, json=said, headers=bearer(keys["write"])).status_code == 200


def test_an_item_goes_with_new_alone(client: TestClient, digit: bytes) -> None:
    refused = client.post(FEEDBACK, json=said_of(client, digit, decision="none_of_these"))
    assert refused.status_code == 422
    assert "needs the decision `new`" in refused.text


def test_the_client_enrols(client: TestClient, stranger: bytes) -> None:
    query = search(client, stranger).json()["query"]["id"]
    with VouchClient("http://localhost", transport=client._transport) as vouch:
        answer = vouch.decide_query("digits", query, "new", item=ItemOfQuery(id="new/2"))
        assert answer.item is not None
        assert vouch.item("digits", "new/2").label is None
