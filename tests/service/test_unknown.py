"""Queries that matched nothing: grouped, counted, enrolled, and found from then on."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import activate
from model_store.feedback import Bounds, ReviewQueue
from service.client import VouchClient, VouchProblem
from service.serving.unknown import QueryGrouper
from tests.end_to_end.questions import search
from tests.support.collection_files import write_drawings
from tests.support.untrained import as_untrained
from tests.support.waiting import TIMEOUT_S

StartClient = Callable[..., TestClient]

UNKNOWN = "/v1/galleries/digits/unknown"
N_DRAWINGS = 250
SURE: dict[str, Any] = {"precision": 0.8}
"""Of eight labels, more than eight ninths is never expected."""

EVERYTHING: dict[str, Any] = {"review_reasons": ["absent", "alien"], "audit_share": 0.0}


@pytest.fixture(scope="module")
def absent(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Drawings of the two digits that the gallery does not have, those of one after the other."""
    folder = tmp_path_factory.mktemp("drawings")
    write_drawings(folder, N_DRAWINGS)
    return [path.read_bytes() for name in "38" for path in sorted((folder / name).glob("*.png"))]


@pytest.fixture
def client(start: StartClient, bundle: Bundle, digits_bundle: Path, tmp_path: Path) -> TestClient:
    """The digits, that take changes, and keep what matched nothing."""
    root = tmp_path / "bundles"
    shutil.copytree(digits_bundle, root / digits_bundle.name)
    activate(root, digits_bundle.name)
    as_untrained(root / digits_bundle.name)
    changing = replace(bundle.within(root), directory=root / digits_bundle.name)
    return start(changing, feedback=tmp_path / "feedback.sqlite3", **EVERYTHING)


def listed(client: TestClient) -> dict[str, Any]:
    response = client.get(UNKNOWN, params=SURE)
    found: dict[str, Any] = response.json()
    assert response.status_code == 200, found
    return found


def test_what_is_not_there_is_grouped_enrolled_and_found(
    client: TestClient, absent: list[bytes], digit: bytes
) -> None:
    answers = [search(client, image, expected_absent=0.5).json() for image in absent]
    asked = {
        one["query"]["id"]
        for one in answers
        if one["verdict"] in {"no_match", "out_of_distribution"}
    }
    search(client, digit)
    found = listed(client)
    assert found["n_queries"] == len(asked) == sum(day["n"] for day in found["asked"])
    groups = found["groups"]
    assert found["n_groups"] == len(groups) == sum(size["n_groups"] for size in found["sizes"])
    assert found["n_grouped"] == sum(group["n"] for group in groups) > 10
    for group in groups:
        members = [member["query_id"] for member in group["members"]]
        assert members[0] == group["medoid"]
        assert len(set(members)) == group["n"]
        assert set(members) <= asked
        assert 0.5 <= group["p_same"] <= 8 / 9
    assert listed(client) == found, "the same queries are the same groups"
    kept_picture = client.get(groups[0]["members"][0]["image_url"]).content

    largest = groups[0]
    said = {"label": "a new one", "reviewer": "ann", "metadata": {"seen": "here"}}
    path = f"{UNKNOWN}/{largest['id']}/enrol"
    done = client.post(path, params=SURE, json=said, headers={"Idempotency-Key": "once"})
    assert done.status_code == 200, done.json()
    enrolled = done.json()
    assert {item["query_id"] for item in enrolled["items"]} == {
        member["query_id"] for member in largest["members"]
    }
    item = client.get(f"/v1/galleries/digits/items/{largest['medoid']}").json()
    assert (item["label"], item["metadata"]) == ("a new one", {"seen": "here"})
    assert client.get(item["thumbnail_url"]).content == kept_picture
    decisions = client.get("/v1/galleries/digits/feedback").json()["decisions"]
    assert {one["query_id"] for one in decisions} == {one["query_id"] for one in enrolled["items"]}
    assert decisions[0]["reviewer"] == "ann"
    again = client.post(path, params=SURE, json=said, headers={"Idempotency-Key": "once"})
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json()["items"] == enrolled["items"]
    assert listed(client)["n_queries"] == len(asked) - largest["n"]
    assert client.post(path, params=SURE, json=said).json()["code"] == "group_not_found"

    now_items = {item["query_id"] for item in enrolled["items"]}
    for image, answer in zip(absent, answers, strict=True):
        if answer["query"]["id"] in now_items:
            first = search(client, image).json()["results"][0]
            assert (first["id"], first["label"]) == (answer["query"]["id"], "a new one")

    for one in enrolled["items"]:
        assert client.delete(f"/v1/galleries/digits/feedback/{one['number']}").is_success
        assert client.delete(f"/v1/galleries/digits/items/{one['item_id']}").is_success
    assert listed(client)["groups"] == groups


def test_some_members_are_enrolled_under_ids_of_ones_own(
    client: TestClient, absent: list[bytes]
) -> None:
    for image in absent:
        search(client, image, expected_absent=0.5)
    with VouchClient("http://127.0.0.1", transport=client._transport) as vouch:
        group = vouch.unknown("digits").groups(**SURE).groups[0]
        first, second = (member.query_id for member in group.members[:2])
        unknown = vouch.unknown("digits")
        with pytest.raises(VouchProblem, match="1 of the queries are not in the group"):
            unknown.enrol(group.id, "x", query_ids=[first, "0" * 64], **SURE)
        with pytest.raises(VouchProblem, match="no group"):
            unknown.enrol("0" * 16, "x")
        done = unknown.enrol(
            group.id, "x", query_ids=[first, second], item_ids={first: "x/1"}, **SURE
        )
        assert {(one.query_id, one.item_id) for one in done.items} == {
            (first, "x/1"),
            (second, second),
        }
        assert vouch.item("digits", "x/1").label == "x"
        left = {m.query_id for g in unknown.groups(**SURE).groups for m in g.members}
        assert not {first, second} & left


def test_a_gallery_whose_labels_say_nothing_is_refused(
    start: StartClient, odd_bundle: Bundle, tmp_path: Path
) -> None:
    client = start(odd_bundle, feedback=tmp_path / "feedback.sqlite3", **EVERYTHING)
    refused = client.get("/v1/galleries/odd/unknown")
    assert (refused.status_code, refused.json()["code"]) == (409, "identities_unavailable")
    assert "0 labels of the gallery have two items" in refused.json()["detail"]


def test_a_gallery_that_the_encoder_was_trained_on_is_refused(
    start: StartClient, bundle: Bundle, tmp_path: Path
) -> None:
    client = start(bundle, feedback=tmp_path / "feedback.sqlite3", **EVERYTHING)
    refused = client.get(UNKNOWN)
    assert (refused.status_code, refused.json()["code"]) == (409, "identities_unavailable")
    assert "needs labels that the encoder was surely not trained on" in refused.json()["detail"]


def test_nothing_is_grouped_where_nothing_is_kept(client: TestClient) -> None:
    found = listed(client)
    assert (found["n_queries"], found["groups"], found["asked"]) == (0, [], [])


@pytest.mark.anyio
async def test_they_are_grouped_on_one_thread_though_nobody_waits(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that leave and ask again occupy no more of those that all requests have in common."""
    begun, may_end = threading.Semaphore(0), threading.Event()

    def grouped(*_: object) -> None:
        begun.release()
        assert may_end.wait(TIMEOUT_S)

    groups, queue = QueryGrouper(), ReviewQueue(tmp_path / "feedback.sqlite3", Bounds(1, 1, 1))
    monkeypatch.setattr(groups, "_of", grouped)
    for _ in range(3):
        asking = asyncio.create_task(groups.of(bundle, queue, 0.9))
        await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert begun.acquire(timeout=TIMEOUT_S)
    assert not begun.acquire(blocking=False)
    waiting = asyncio.create_task(groups.of(bundle, queue, 0.9))
    may_end.set()
    await waiting
