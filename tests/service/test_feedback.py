"""What users say of matches: kept once for each pair, and compared with what was served."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.decision import Recalibration
from model_store.retriever import Retriever
from tests.end_to_end.questions import picture, search

StartClient = Callable[..., TestClient]

FEEDBACK = "/v1/galleries/digits/feedback"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "feedback.sqlite3"


@pytest.fixture
def client(start: StartClient, log: Path) -> TestClient:
    return start(feedback=log)


def say(client: TestClient, answer: dict[str, Any], place: int, *, correct: bool) -> dict[str, Any]:
    said = {
        "query_id": answer["query"]["id"],
        "item_id": answer["results"][place]["id"],
        "correct": correct,
    }
    response = client.post("/v1/galleries/digits/feedback", json=said)
    kept: dict[str, Any] = response.json()
    assert response.status_code == 200, kept
    return kept


def summary(client: TestClient) -> dict[str, Any] | None:
    found: dict[str, Any] | None = client.get("/v1/galleries/digits/calibration").json()["feedback"]
    return found


def test_what_was_served_is_kept_with_what_is_said(
    client: TestClient, digit: bytes, log: Path, bundle: Bundle
) -> None:
    assert summary(client) is None
    answer = search(client, digit, limit=3).json()
    served = answer["results"][2]
    kept = say(client, answer, 2, correct=True)
    assert (kept["rank"], kept["match_probability"]) == (3, served["match_probability"])
    row = sqlite3.connect(log).execute("SELECT * FROM feedback").fetchone()
    assert row[:7] == (
        "digits",
        bundle.manifest.id,
        answer["query"]["id"],
        served["id"],
        1,
        3,
        served["match_probability"],
    )
    calibration = bundle.retriever.calibration
    assert calibration is not None
    assert row[9] == calibration.match_fingerprint
    assert 1 / (1 + math.exp(-row[8])) == pytest.approx(served["match_probability"])


def test_match_probability_is_at_the_share_of_the_gallery(client: TestClient, digit: bytes) -> None:
    usual = search(client, digit).json()["results"][0]
    answer = search(client, digit, expected_absent=0.99).json()
    assert answer["results"][0]["match_probability"] < usual["match_probability"]
    kept = say(client, answer, 0, correct=True)
    assert kept["match_probability"] == usual["match_probability"]
    schema = client.get("/openapi.json").json()["components"]["schemas"]["FeedbackAnswer"]
    described = schema["properties"]["match_probability"]["description"]
    assert "the gallery's share of absent queries" in described


def test_the_hundredth_result_can_be_spoken_of_too(client: TestClient, digit: bytes) -> None:
    answer = search(client, digit, limit=100).json()
    kept = say(client, answer, 99, correct=False)
    served = answer["results"][99]
    assert (kept["rank"], kept["match_probability"]) == (100, served["match_probability"])


def test_the_last_word_on_a_pair_counts(client: TestClient, digit: bytes) -> None:
    answer = search(client, digit).json()
    for correct in (True, False, True):
        say(client, answer, 0, correct=correct)
    assert summary(client) == {
        "n": 1,
        "probability": pytest.approx(answer["results"][0]["match_probability"]),
        "share": 1.0,
    }


def test_the_calibration_shows_how_users_see_it(client: TestClient, bundle: Bundle) -> None:
    probabilities, said = [], []
    for number, sample in enumerate(bundle.manifest.samples):
        answer = search(client, (bundle.directory / sample.file).read_bytes()).json()
        probabilities.append(say(client, answer, 0, correct=number % 2 == 0)["match_probability"])
        said.append(number % 2 == 0)
    assert summary(client) == {
        "n": len(said),
        "probability": pytest.approx(sum(probabilities) / len(said)),
        "share": pytest.approx(sum(said) / len(said)),
    }


def test_the_calibration_shows_what_feedback_changed(
    start: StartClient, bundle: Bundle, digit: bytes
) -> None:
    assert start().get("/v1/galleries/digits/calibration").json()["correction"] is None
    calibration = bundle.retriever.calibration
    assert calibration is not None
    report = {
        "n": 60,
        "confirmed": 20,
        "n_drawn": 15,
        "n_ordered": 5,
        "n_others": 3,
        "applied": True,
        "slope": 0.5,
        "intercept": -1.0,
        "log_loss_before": 0.9,
        "log_loss_after": 0.6,
    }
    corrected = replace(
        calibration,
        feedback=Recalibration(0.5, -1.0),
        report={**calibration.report, "feedback": report},
    )
    retriever = Retriever(bundle.retriever.encoder, bundle.retriever.gallery, corrected)
    client = start(replace(bundle, retriever=retriever))
    assert client.get("/v1/galleries/digits/calibration").json()["correction"] == report
    before, after = (
        each.json()["results"][0]["match_probability"]
        for each in (search(start(), digit), search(client, digit))
    )
    assert after < before


def test_decision_that_is_sent_again_is_stored_once(client: TestClient, digit: bytes) -> None:
    answer = search(client, digit).json()
    said = {"query_id": answer["query"]["id"], "decision": "none_of_these", "reviewer": "ann"}
    key = {"Idempotency-Key": "first"}
    first, again = (client.post(FEEDBACK, json=said, headers=key) for _ in range(2))
    assert first.json() == again.json()
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    other = client.post(FEEDBACK, json={**said, "reviewer": "bob"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")
    client.post(FEEDBACK, json=said, headers={"Idempotency-Key": "second"}).raise_for_status()
    assert [one["number"] for one in client.get(FEEDBACK).json()["decisions"]] == [1, 2]


def test_decision_is_replayed_when_its_query_is_forgotten(
    start: StartClient, log: Path, digit: bytes
) -> None:
    client = start(feedback=log)
    said = {"query_id": search(client, digit).json()["query"]["id"], "decision": "none_of_these"}
    key = {"Idempotency-Key": "first"}
    stored = client.post(FEEDBACK, json=said, headers=key).json()
    restarted = start(feedback=log)  # its cache is empty
    assert restarted.post(FEEDBACK, json=said).status_code == 404
    again = restarted.post(FEEDBACK, json=said, headers=key)
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (stored, "true")


def test_it_outlives_the_process(start: StartClient, log: Path, digit: bytes) -> None:
    first = start(feedback=log)
    say(first, search(first, digit).json(), 0, correct=False)
    assert summary(start(feedback=log)) == summary(first) != None  # noqa: E711


@pytest.mark.parametrize(
    ("changed", "status", "code"),
    [
        ({"query_id": "0" * 64}, 404, "query_not_found"),
        ({"query_id": "short"}, 422, "invalid_request"),
        ({"item_id": "none"}, 404, "item_not_found"),
        ({"item_id": None}, 422, "invalid_request"),
        ({"correct": "perhaps"}, 422, "invalid_request"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is(
    client: TestClient, digit: bytes, changed: dict[str, Any], status: int, code: str
) -> None:
    answer = search(client, digit).json()
    said = {
        "query_id": answer["query"]["id"],
        "item_id": answer["results"][0]["id"],
        "correct": True,
    }
    response = client.post("/v1/galleries/digits/feedback", json={**said, **changed})
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert summary(client) is None


def test_an_item_that_the_query_did_not_find_is_refused(
    client: TestClient, digit: bytes, bundle: Bundle
) -> None:
    answer = search(client, digit, limit=100).json()
    found = {result["id"] for result in answer["results"]}
    gallery = bundle.retriever.gallery
    item = gallery.items(gallery.candidates(_far_from(bundle, digit)[None], 1).rows[0])[0]
    assert item.id not in found
    response = client.post(
        "/v1/galleries/digits/feedback",
        json={"query_id": answer["query"]["id"], "item_id": item.id, "correct": False},
    )
    assert response.status_code == 404
    assert "did not find item" in response.json()["detail"]


def _far_from(bundle: Bundle, image: bytes) -> Any:
    return -bundle.retriever.search(image).predictive.direction


def test_without_a_file_or_a_calibration_none_is_kept(
    start: StartClient, bare_bundle: Bundle, log: Path
) -> None:
    for client, reason in (
        (start(), "VOUCH_FEEDBACK"),
        (start(bare_bundle, feedback=log), "has no calibration"),
    ):
        answer = search(client, picture("PNG")).json()
        response = client.post(
            "/v1/galleries/digits/feedback",
            json={
                "query_id": answer["query"]["id"],
                "item_id": answer["results"][0]["id"],
                "correct": True,
            },
        )
        assert response.status_code == 409
        assert reason in response.json()["detail"]
    assert not log.exists()


def decide(client: TestClient, answer: dict[str, Any], decision: str, **more: Any) -> Any:
    said = {"query_id": answer["query"]["id"], "decision": decision, **more}
    return client.post("/v1/galleries/digits/feedback", json=said)


def pairs(log: Path) -> dict[str, bool]:
    with sqlite3.connect(log) as connection:
        found = connection.execute("SELECT item_id, correct FROM feedback").fetchall()
    return {item_id: bool(correct) for item_id, correct in found}


def test_none_of_these_and_new_say_that_the_first_is_no_match(
    client: TestClient, digit: bytes, log: Path
) -> None:
    answer = search(client, digit).json()
    first = answer["results"][0]["id"]
    for decision in ("none_of_these", "new"):
        kept = decide(client, answer, decision, reviewer="ann", comment="a blur").json()
        assert (kept["item_id"], kept["rank"], kept["correct"]) == (None, None, None)
        assert pairs(log) == {first: False}
    listed = client.get("/v1/galleries/digits/feedback?limit=1").json()
    (one,) = listed["decisions"]
    assert (one["decision"], one["reviewer"], one["comment"]) == ("none_of_these", "ann", "a blur")
    (two,) = client.get(
        "/v1/galleries/digits/feedback", params={"after": listed["next_after"]}
    ).json()["decisions"]
    assert (two["decision"], two["number"]) == ("new", one["number"] + 1)
    undone = client.delete(f"/v1/galleries/digits/feedback/{one['number']}").json()
    assert undone["undone_at"] is not None
    assert pairs(log) == {first: False}  # the other still says so
    client.delete(f"/v1/galleries/digits/feedback/{two['number']}")
    assert pairs(log) == {}
    assert summary(client) is None


def test_that_item_may_be_any_item(
    client: TestClient, digit: bytes, bundle: Bundle, log: Path
) -> None:
    """One that the query did not find has no probability to be compared with; the first is wrong.

    Where the first shows the same thing, it is right.
    """
    answer = search(client, digit, limit=100).json()
    first = answer["results"][0]
    gallery = bundle.retriever.gallery
    far = gallery.items(gallery.candidates(_far_from(bundle, digit)[None], 1).rows[0])[0]
    assert far.label != first["label"]
    kept = decide(client, answer, "that_item", item_id=far.id).json()
    assert (kept["correct"], kept["rank"], kept["match_probability"]) == (True, None, None)
    assert pairs(log) == {first["id"]: False}
    same = next(one for one in answer["results"][1:] if one["label"] == first["label"])
    kept = decide(client, answer, "that_item", item_id=same["id"]).json()
    assert (kept["rank"], kept["match_probability"]) == (same["rank"], same["match_probability"])
    assert pairs(log) == {first["id"]: True, same["id"]: True}


@pytest.mark.parametrize(
    "said",
    [
        {"decision": "new", "item_id": "x"},
        {"decision": "this_item"},
        {"decision": "this_item", "item_id": "x", "correct": True},
        {"item_id": "x"},
        {"decision": "maybe", "item_id": "x"},
        {"decision": "new", "reviewer": ""},
        {"decision": "new", "comment": "x" * 2001},
    ],
)
def test_a_decision_that_says_too_little_or_too_much_is_refused(
    client: TestClient, said: dict[str, Any]
) -> None:
    response = client.post("/v1/galleries/digits/feedback", json={"query_id": "0" * 64, **said})
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")


def test_a_query_can_be_decided_on_for_as_long_as_its_owner_keeps_it(
    start: StartClient, digit: bytes, log: Path
) -> None:
    """Nothing is cached, and the service is another one by then."""
    first = start(feedback=log, query_retention_s=3600, cache_bytes=0)
    answer = search(first, digit, limit=3).json()
    kept = decide(first, answer, "this_item", item_id=answer["results"][0]["id"])
    assert kept.status_code == 200  # it waits to be written
    first.__exit__(None, None, None)
    again = start(feedback=log, query_retention_s=3600, cache_bytes=0)
    found = decide(again, answer, "not_this_item", item_id=answer["results"][2]["id"]).json()
    served = answer["results"][2]
    assert found["rank"] == 3
    assert found["match_probability"] == pytest.approx(served["match_probability"], abs=0.01)
    forgetful = start(feedback=log, cache_bytes=0)
    refused = decide(forgetful, answer, "none_of_these")
    assert (refused.status_code, refused.json()["code"]) == (404, "query_not_found")
    with sqlite3.connect(log) as connection:
        held = connection.execute("SELECT * FROM answered").fetchone()
    assert digit not in held  # numbers, and no image
