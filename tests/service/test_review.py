"""The review queue over HTTP: what is kept and by whom it is seen, leased, decided and deleted."""

from __future__ import annotations

import base64
import io
import json
import logging
import sqlite3
import zipfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image
from starlette.testclient import TestClient

from model_store.feedback import CASE_REASONS, Case, CaseItem, Picture
from service.http.labelling import label_studio
from service.serving import engine
from tests.end_to_end.keys import KeysFile, bearer
from tests.end_to_end.processes import Redis
from tests.end_to_end.questions import picture, search
from tests.support.waiting import TIMEOUT_S, wait_until

StartClient = Callable[..., TestClient]

REVIEW = "/v1/galleries/digits/review"
FEEDBACK = "/v1/galleries/digits/feedback"
EXPORT = f"{REVIEW}/export?format=label_studio"
EVERYTHING: dict[str, Any] = {"review_reasons": CASE_REASONS, "audit_share": 1.0}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "feedback.sqlite3"


@pytest.fixture
def client(start: StartClient, log: Path) -> TestClient:
    return start(feedback=log, **EVERYTHING)


def lease(client: TestClient, reviewer: str, limit: int = 1, **wanted: Any) -> list[dict[str, Any]]:
    asked = {"reviewer": reviewer, "limit": limit, **wanted}
    found: list[dict[str, Any]] = client.post(f"{REVIEW}/leases", json=asked).json()["leases"]
    return found


def photograph(seed: int = 0) -> bytes:
    """A large noisy JPEG that says where it was taken."""
    exif = Image.Exif()
    exif[0x010E] = "taken-at-home"
    file = io.BytesIO()
    with Image.open(io.BytesIO(picture("PNG", 300, 200, seed=seed))) as image:
        image.convert("RGB").save(file, "JPEG", exif=exif)
    return file.getvalue()


def test_a_query_is_kept_given_to_one_reviewer_and_settled(
    client: TestClient, digit: bytes, stranger: bytes
) -> None:
    found, alien = (search(client, image).json() for image in (digit, stranger))
    cases = client.get(REVIEW).json()["cases"]
    assert [(one["query_id"], one["reason"], one["drawn"]) for one in cases] == [
        (found["query"]["id"], "random", True),
        (alien["query"]["id"], "alien", True),
    ]
    assert [one["draw_probability"] for one in cases] == [1, 1]
    assert [item["id"] for item in cases[0]["found"]] == [one["id"] for one in found["results"]]
    assert lease(client, "zoe", 5, reasons=["absent"]) == []
    [first] = lease(client, "ann")
    [second] = lease(client, "bob", 5)
    assert first["case"] == cases[0]
    assert second["case"]["query_id"] == alien["query"]["id"]
    assert lease(client, "eve") == []
    said = {"query_id": alien["query"]["id"], "decision": "none_of_these", "reviewer": "bob"}
    assert client.post(FEEDBACK, json=said).status_code == 200
    [kept] = client.get(FEEDBACK).json()["decisions"]
    assert (kept["selection"], kept["draw_probability"]) == ("drawn", 1)
    assert client.get(f"{REVIEW}/{alien['query']['id']}").json()["state"] == "settled"
    ended = client.delete(f"{REVIEW}/{found['query']['id']}/lease", params={"reviewer": "ann"})
    assert ended.json()["ended"]
    assert len(lease(client, "eve", 5)) == 1
    told = client.get(f"{REVIEW}/summary").json()
    assert (told["random_share"], told["image"], told["reviewers"]) == (1, "thumbnail", 1)
    assert {(one["reason"], one["state"], one["n"]) for one in told["counts"]} == {
        ("random", "open", 1),
        ("alien", "settled", 1),
    }


@pytest.mark.parametrize(
    ("code", "status", "problem"),
    [
        (sqlite3.SQLITE_FULL, 507, "storage_full"),
        (sqlite3.SQLITE_READONLY, 409, "write_refused"),
        (sqlite3.SQLITE_BUSY, 503, "storage_busy"),
    ],
)
def test_feedback_file_that_cannot_be_written_is_told_by_every_write(
    client: TestClient,
    digit: bytes,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    status: int,
    problem: str,
) -> None:
    """Reads still answer; the same writes succeed afterwards."""
    query_id = search(client, digit).json()["query"]["id"]
    decision = {"query_id": query_id, "decision": "none_of_these", "reviewer": "ann"}
    first = client.post(FEEDBACK, json=decision).json()
    choice = [{"from_name": "decision", "value": {"choices": ["none_of_these"]}}]
    annotation = {"result": choice, "created_at": "2026-03-09T22:16:08Z"}
    tasks = [{"data": {"query_id": query_id}, "annotations": [annotation]}]

    def writes() -> list[httpx2.Response]:
        return [
            client.post(FEEDBACK, json={**decision, "reviewer": "bob"}),
            client.delete(f"{FEEDBACK}/{first['number']}"),
            client.post(f"{REVIEW}/leases", json={"reviewer": "eve"}),
            client.post(f"{REVIEW}/import", json=tasks),
            client.delete(f"{REVIEW}/{query_id}/lease", params={"reviewer": "eve"}),
            client.delete(f"{REVIEW}/{query_id}"),
        ]

    class Unwritable(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "BEGIN IMMEDIATE":
                error = sqlite3.OperationalError("it said so")
                error.sqlite_errorcode = code
                raise error
            return super().execute(sql, *values)

    with monkeypatch.context() as patch:
        connect = partial(sqlite3.connect, factory=Unwritable)
        patch.setattr(sqlite3, "connect", connect)
        for refused in writes():
            assert (refused.status_code, refused.json()["code"]) == (status, problem)
        [kept] = client.get(FEEDBACK).json()["decisions"]
        assert kept["number"] == first["number"]
        assert client.get(f"{REVIEW}/{query_id}").status_code == 200
        assert search(client, digit).status_code == 200
    assert {done.status_code for done in writes()} == {200}


def test_only_what_the_owner_chose_is_kept(
    start: StartClient, log: Path, digit: bytes, stranger: bytes
) -> None:
    client = start(feedback=log, review_reasons=["absent", "random"], audit_share=0.0)
    for image in (digit, stranger):
        search(client, image)
    assert client.get(REVIEW).json() == {"cases": [], "next_after": None}
    off = start(feedback=log)
    search(off, stranger)
    refused = off.get(REVIEW)
    assert (refused.status_code, refused.json()["code"]) == (409, "feedback_not_kept")
    assert sqlite3.connect(log).execute("SELECT COUNT(*) FROM cases").fetchone() == (0,)


def test_a_query_under_a_filter_is_not_kept(client: TestClient, stranger: bytes) -> None:
    """Its answer is about some of the items only."""
    search(client, stranger, filter=json.dumps({"label": "3"}))
    assert client.get(REVIEW).json()["cases"] == []


@pytest.mark.parametrize("kept", ["thumbnail", "original", "none"])
def test_what_is_kept_of_the_image(start: StartClient, log: Path, kept: str) -> None:
    client = start(feedback=log, review_image=kept, **EVERYTHING)
    sent = photograph()
    query_id = search(client, sent).json()["query"]["id"]
    [case] = client.get(REVIEW).json()["cases"]
    shown = client.get(f"{REVIEW}/{query_id}/image")
    if kept == "none":
        assert (case["image_url"], shown.status_code) == (None, 404)
        return
    assert case["image_url"] == f"{REVIEW}/{query_id}/image"
    assert (shown.headers["content-type"], shown.headers["cache-control"]) == (
        "image/jpeg",
        "no-store",
    )
    with Image.open(io.BytesIO(shown.content)) as image:
        assert (max(image.size), bool(image.getexif())) == (
            (160, False) if kept == "thumbnail" else (300, True)
        )
    assert (shown.content == sent) == (kept == "original")
    assert (b"taken-at-home" in log.read_bytes()) == (kept == "original")


def test_a_kept_query_can_be_decided_on_when_nothing_is_cached(
    start: StartClient, log: Path, digit: bytes
) -> None:
    given = {"feedback": log, "cache_bytes": 0, **EVERYTHING}
    first = start(**given)
    answer = search(first, digit).json()
    first.__exit__(None, None, None)
    said = {"query_id": answer["query"]["id"], "decision": "none_of_these"}
    assert start(**given).post(FEEDBACK, json=said).status_code == 200
    forgetful = start(feedback=log, cache_bytes=0)
    assert forgetful.post(FEEDBACK, json=said).status_code == 404


def test_what_is_deleted_on_request_is_gone(client: TestClient, log: Path) -> None:
    answer = search(client, photograph()).json()
    query_id = answer["query"]["id"]
    kept = client.get(f"{REVIEW}/{query_id}/image").content
    said = {"query_id": query_id, "decision": "none_of_these"}
    assert client.post(FEEDBACK, json=said).status_code == 200
    mean = sqlite3.connect(log).execute("SELECT mean FROM answered").fetchone()[0]
    assert kept[-40:] in log.read_bytes()
    assert mean in log.read_bytes()
    assert client.delete(f"{REVIEW}/{query_id}").json() == {"query_id": query_id}
    assert kept[-40:] not in log.read_bytes()
    assert mean not in log.read_bytes()
    for path in (f"{REVIEW}/{query_id}", f"{REVIEW}/{query_id}/image"):
        assert client.get(path).json()["code"] == "query_not_found"
    assert client.delete(f"{REVIEW}/{query_id}").status_code == 404
    assert client.post(FEEDBACK, json=said).status_code == 404
    assert len(client.get(FEEDBACK).json()["decisions"]) == 1


def test_one_deleted_before_it_is_written_is_gone_too(client: TestClient, log: Path) -> None:
    query_id = search(client, photograph()).json()["query"]["id"]
    assert client.delete(f"{REVIEW}/{query_id}").status_code == 200
    assert client.get(REVIEW).json()["cases"] == []


def test_one_is_reviewed_in_another_process_right_after_its_answer(
    start: StartClient, log: Path, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "WRITTEN_WITHIN_S", TIMEOUT_S)  # for a slow disk
    given = {"feedback": log, "canary_period_s": 600, "redis_url": redis_server.url, **EVERYTHING}
    one, other = (start(redis_timeout_s=60, **given) for _ in range(2))
    for path in ("", "/image"):
        query_id = search(one, photograph(len(path))).json()["query"]["id"]
        assert other.get(f"{REVIEW}/{query_id}{path}").status_code == 200
    unknown = other.get(f"{REVIEW}/{'0' * 64}")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "query_not_found")


def test_each_is_written_soon_and_without_a_request(start: StartClient, log: Path) -> None:
    client = start(feedback=log, canary_period_s=600, **EVERYTHING)
    client.get(REVIEW)  # it makes the tables
    with closing(sqlite3.connect(log)) as connection:

        def n_written() -> int:
            n: int = connection.execute("SELECT COUNT(*) FROM cases").fetchone()[0]
            return n

        for n in (1, 2):
            search(client, photograph(n))
            wait_until(lambda n=n: n_written() == n)  # type: ignore[misc]


def test_neither_logs_nor_metrics_tell_of_a_query(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        query_id = search(client, photograph()).json()["query"]["id"]
        image = client.get(f"{REVIEW}/{query_id}/image").content
        lease(client, "ann-the-reviewer")
        client.delete(f"{REVIEW}/{query_id}/lease", params={"reviewer": "ann-the-reviewer"})
        client.post(FEEDBACK, json={"query_id": query_id, "decision": "none_of_these"})
        metrics = client.get("/metrics").text
        client.delete(f"{REVIEW}/{query_id}")
    assert 'vouch_review_cases_total{gallery="digits",outcome="kept"} 1.0' in metrics
    ours = [one for one in caplog.records if one.name.startswith(("service", "model_store"))]
    logged = "\n".join(f"{one.getMessage()} {one.__dict__}" for one in ours)
    assert "/review/{query_id}/image" in logged
    private = (
        query_id,
        "ann-the-reviewer",
        image.hex()[:64],
        base64.b64encode(image).decode()[:64],
    )
    for text in (logged, metrics):
        assert not [one for one in private if one in text]


def test_reviewers_need_a_key_of_theirs_and_no_more(
    start: StartClient, log: Path, keys_file: KeysFile, stranger: bytes
) -> None:
    reviewer, reader = (bearer(keys_file.make(scope)) for scope in ("review", "read"))
    client = start(feedback=log, keys=keys_file.path, anonymous=True, **EVERYTHING)
    query_id = search(client, stranger).json()["query"]["id"]
    paths = (REVIEW, f"{REVIEW}/{query_id}/image", f"{REVIEW}/export?format=fiftyone")
    for path in paths:
        assert client.get(path).status_code == 401  # though anyone may search, and write
        assert client.get(path, headers=reader).status_code == 403
        assert client.get(path, headers=reviewer).status_code == 200
    assert client.delete(f"{REVIEW}/{query_id}", headers=reviewer).status_code == 403
    said = {"query_id": query_id, "decision": "new", "reviewer": "ann"}
    assert client.post(FEEDBACK, json=said, headers=reviewer).status_code == 200


def test_a_match_that_is_called_wrong_is_looked_at_by_somebody_else(
    start: StartClient, log: Path, digit: bytes
) -> None:
    client = start(feedback=log, review_reasons=["contradicted"])
    answer = search(client, digit).json()
    assert answer["verdict"] == "match"
    item_id = answer["results"][0]["id"]
    query_id = answer["query"]["id"]
    said = {"query_id": query_id, "decision": "not_this_item", "item_id": item_id}
    assert client.post(FEEDBACK, json={**said, "reviewer": "ann"}).status_code == 200
    assert lease(client, "ann") == []
    [given] = lease(client, "bob")
    assert (given["case"]["reason"], given["case"]["reviewers"]) == ("contradicted", 2)
    assert given["case"]["image_url"] is None
    search(client, digit)  # the same photograph once more: nothing new to keep of a match
    client.post(FEEDBACK, json={**said, "reviewer": "bob"})
    assert client.get(f"{REVIEW}/{query_id}").json()["state"] == "settled"


def test_label_studio_reads_the_cases_and_its_annotations_become_decisions(
    client: TestClient, digit: bytes, stranger: bytes
) -> None:
    found, alien = (search(client, image).json() for image in (digit, stranger))
    first = client.get(f"{REVIEW}/export", params={"format": "label_studio", "limit": 1})
    rest = client.get(first.links["next"]["url"])
    assert "next" not in rest.links
    both = client.get(f"{REVIEW}/export", params={"format": "label_studio", "limit": 2})
    assert "next" not in both.links
    tasks = first.json() + rest.json()
    assert [task["data"]["query_id"] for task in tasks] == [
        found["query"]["id"],
        alien["query"]["id"],
    ]
    head, _, body = tasks[0]["data"]["image"].partition(";base64,")
    with Image.open(io.BytesIO(base64.b64decode(body))) as image:
        assert head == f"data:{Image.MIME[str(image.format)]}"
    interface = client.get(f"{REVIEW}/export", params={"format": "label_studio_interface"}).text
    names = {result["from_name"] for task in tasks for result in task["predictions"][0]["result"]}
    assert all(f'name="{name}"' in interface for name in names)
    item = tasks[0]["data"]["items"][0]["value"]
    annotation = {
        "completed_by": {"id": 7, "email": "ann@museum.example"},
        "created_at": "2026-03-09T22:16:08.728353Z",
        "was_cancelled": False,
        "result": [
            *tasks[0]["predictions"][0]["result"],
            {
                "from_name": "comment",
                "to_name": "image",
                "type": "textarea",
                "value": {"text": ["clear"]},
            },
        ],
    }
    nothing = tasks[1]["predictions"][0]["result"]
    annotated = [
        {**tasks[0], "annotations": [annotation, {**annotation, "was_cancelled": True}]},
        {**tasks[1], "annotations": [{**annotation, "result": nothing, "completed_by": 7}]},
        {"data": {"query_id": "0" * 64}, "annotations": [{**annotation, "result": nothing}]},
        {"data": {"query_id": found["query"]["id"]}, "annotations": [{"result": []}]},
        {"data": {}},
    ]
    done = client.post(f"{REVIEW}/import", json=annotated).json()
    assert (done["n_new"], done["n_known"], len(done["problems"])) == (2, 0, 3)
    again = client.post(f"{REVIEW}/import", json=annotated).json()
    assert (again["n_new"], again["n_known"]) == (0, 2)
    decisions = client.get(FEEDBACK).json()["decisions"]
    assert [
        (one["decision"], one["item_id"], one["reviewer"], one["comment"]) for one in decisions
    ] == [
        ("this_item", item, "label-studio:ann@museum.example", "clear"),
        ("none_of_these", None, "label-studio:7", None),
    ]
    assert [(one["selection"], one["draw_probability"]) for one in decisions] == [("drawn", 1)] * 2
    assert decisions[0]["decided_at"] == "2026-03-09T22:16:08.728353Z"
    assert client.get(f"{REVIEW}/export?format=label_studio").json() == []  # all are settled


UNFIT: dict[str, dict[str, Any]] = {
    "a time after the year 9999": {"created_at": "9999-12-31T23:59:59-14:00"},
    "a time before the year 1": {"created_at": "0001-01-01T00:00:00+14:00"},
    "a time in the future": {"created_at": "2999-01-01T00:00:00Z"},
    "a choice that is no text": {"result": [{"from_name": "decision", "value": {"choices": [{}]}}]},
    "a comment that is no text": {"comment": [{"a": 1}]},
    "half a character": {"comment": ["\ud800"]},
    "a long comment": {"comment": ["a" * 2001]},
    "no list": {"result": 5},
}


@pytest.mark.parametrize("name", UNFIT)
def test_annotation_that_cannot_be_imported_is_listed_alone(
    client: TestClient, digit: bytes, stranger: bytes, name: str
) -> None:
    ids = [search(client, image).json()["query"]["id"] for image in (digit, stranger)]
    said = [{"from_name": "decision", "value": {"choices": ["none_of_these"]}}]
    right = {"result": said, "created_at": "2026-03-09T22:16:08Z"}
    change = dict(UNFIT[name])
    if "comment" in change:
        comment = {"from_name": "comment", "value": {"text": change.pop("comment")}}
        change["result"] = [*said, comment]
    annotated = [
        {"data": {"query_id": ids[0]}, "annotations": [{**right, **change}]},
        {"data": {"query_id": ids[1]}, "annotations": [right]},
        {"data": {"query_id": ids[0]}, "annotations": 5},
        {"data": {"query_id": "\ud800"}, "annotations": [right]},
    ]
    done = client.post(
        f"{REVIEW}/import",
        content=json.dumps(annotated),
        headers={"Content-Type": "application/json"},
    ).json()
    assert [one["query_id"] for one in done["problems"]] == [ids[0], ids[0], "?"]
    [kept] = client.get(FEEDBACK).json()["decisions"]
    assert kept["query_id"] == ids[1]


def test_export_of_label_studio_with_many_tasks_is_imported(
    start: StartClient, log: Path, digit: bytes
) -> None:
    client = start(feedback=log, deadline_s=120, **EVERYTHING)  # each task is answered again
    query_id = search(client, digit).json()["query"]["id"]
    [task] = client.get(f"{REVIEW}/export", params={"format": "label_studio"}).json()
    result = [
        {"from_name": "decision", "value": {"choices": ["none_of_these"]}},
        {"from_name": "comment", "value": {"text": "a plain text"}},
    ]
    exported = {
        **task,
        **{f"field_{n}": n for n in range(20)},
        "annotations": [{"result": result, "created_at": "2026-03-09T22:16:08Z"}],
    }
    done = client.post(f"{REVIEW}/import", json=[exported] * 1000)
    assert done.status_code == 200, done.text
    [kept] = client.get(FEEDBACK).json()["decisions"]
    assert (kept["query_id"], kept["comment"]) == (query_id, "a plain text")


@pytest.mark.parametrize(
    ("first", "no_match", "decision", "score"),
    [
        (0.986, 0.011, "this_item", 0.986),
        (0.1, 0.9, "none_of_these", 0.9),
        (None, None, None, None),
    ],
)
def test_label_studio_gets_the_likelier_decision(
    first: float | None, no_match: float | None, decision: str | None, score: float | None
) -> None:
    """The verdict `no_match` does not say that no match is likelier."""
    item = CaseItem("i", "label", first)
    case = Case(
        gallery="g",
        encoder="e",
        bundle="b",
        query_id="q" * 64,
        reason="random",
        drawn=True,
        verdict="no_match",
        found=(item,),
        no_match_probability=no_match,
        match_log_odds=None,
        match_fingerprint=None,
        reviewers=1,
        wanted=1,
        kept_at=0.0,
    )
    [task] = label_studio([(case, Picture(b"p", "image/png"))])
    said = [
        (one["score"], {part["from_name"]: part["value"]["choices"][0] for part in one["result"]})
        for one in task["predictions"]
    ]
    named = {"item": "i"} if decision == "this_item" else {}
    assert said == ([] if decision is None else [(score, {"decision": decision, **named})])


def test_fiftyone_reads_the_cases(client: TestClient, digit: bytes) -> None:
    answer = search(client, digit).json()
    packed = client.get(f"{REVIEW}/export", params={"format": "fiftyone"})
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        [sample] = json.loads(archive.read("samples.json"))["samples"]
        with Image.open(io.BytesIO(archive.read(sample["filepath"]))) as image:
            image.verify()
        assert json.loads(archive.read("metadata.json")) == {"media_type": "image"}
    first = answer["results"][0]
    assert sample["prediction"] == {
        "_cls": "Classification",
        "label": first["label"],
        "confidence": first["match_probability"],
    }
    assert (sample["vouch_verdict"], sample["tags"]) == ("match", ["random", "drawn"])


def test_more_than_may_wait_is_lost_and_counted(
    client: TestClient, stranger: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.serving.reviewing.MOST_WAITING_BYTES", 10)
    search(client, stranger)
    assert client.get(REVIEW).json()["cases"] == []
    counted = client.get("/metrics").text
    assert 'vouch_review_cases_total{gallery="digits",outcome="lost"} 1.0' in counted


@pytest.mark.parametrize("path", [f"{FEEDBACK}?after=", f"{REVIEW}?after=", f"{EXPORT}&after="])
def test_no_page_begins_after_a_number_that_nothing_can_have(client: TestClient, path: str) -> None:
    assert client.get(f"{path}{2**63 - 1}").status_code == 200
    refused = client.get(f"{path}{2**63}")
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")


def test_a_number_that_no_decision_can_have_is_refused(client: TestClient) -> None:
    assert client.delete(f"{FEEDBACK}/{2**63 - 1}").status_code == 404
    assert client.delete(f"{FEEDBACK}/{2**63}").status_code == 422
