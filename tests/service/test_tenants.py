"""Galleries that are created over HTTP, keys that are for some of them, and quotas."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle, open_bundle
from model_store.encoder.onnx import OnnxEncoder
from model_store.feedback import Decided, FeedbackLog, moment
from service.app import create_app
from service.encoding.queues import SharedEncoders
from service.http.routes import ROUTERS
from service.serving.created import CreatedGalleries
from service.settings import Settings
from tests.end_to_end.keys import KeysFile, bearer
from tests.end_to_end.processes import Redis
from tests.support.local_client import LocalClient

START = Callable[..., TestClient]


@pytest.fixture(scope="module")
def encoders() -> SharedEncoders:
    """As `vouch-serve` has them, but in this process."""
    return SharedEncoders(
        lambda find, provider, threads: OnnxEncoder(find(), provider, threads),
    )


@pytest.fixture
def serve(bundle: Bundle, tmp_path: Path, encoders: SharedEncoders) -> Iterator[START]:
    """Start the application over the digits and a folder of galleries."""
    started: list[TestClient] = []
    open_one = partial(
        open_bundle,
        provider="cpu",
        threads=1,
        open_encoder=encoders.open,
        open_text=encoders.open_text,
    )

    def start_one(**settings: Any) -> TestClient:
        given: dict[str, Any] = {
            "decoders": 0,
            "recalibrate": False,
            "galleries": tmp_path / "galleries",
        }
        app = create_app(Settings(**given | settings), [bundle], open_more=open_one)
        started.append(LocalClient(app, raise_server_exceptions=False).__enter__())
        return started[-1]

    yield start_one
    for client in started:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serve: START) -> TestClient:
    return serve()


def create(
    client: TestClient, name: str, headers: dict[str, str] | None = None, **more: str
) -> Any:
    return client.post("/v1/galleries", json={"name": name, **more}, headers=headers)


def put(client: TestClient, gallery: str, item: str, image: bytes, **options: Any) -> Any:
    path = f"/v1/galleries/{gallery}/items/{item}"
    return client.put(path, files={"image": image}, **options)


def search(client: TestClient, gallery: str, image: bytes, **options: Any) -> Any:
    return client.post(f"/v1/galleries/{gallery}/search", files={"image": image}, **options)


def names(client: TestClient, headers: dict[str, str] | None = None) -> list[str]:
    answer = client.get("/v1/galleries", headers=headers).json()
    return [gallery["name"] for gallery in answer["galleries"]]


class TestAGallery:
    def test_is_created_empty_takes_items_at_once_and_is_never_sure(
        self, client: TestClient, digit: bytes, stranger: bytes
    ) -> None:
        made = create(client, "shoes", title="Shoes", description="Of this season")
        assert made.status_code == 201
        assert made.headers["location"] == "/v1/galleries/shoes"
        detail = made.json()
        assert (detail["title"], detail["description"]) == ("Shoes", "Of this season")
        assert detail["n_items"] == 0
        assert detail["bundle"]["calibration"]["status"] == "missing"
        empty = search(client, "shoes", digit).json()
        assert (empty["verdict"], empty["results"]) == ("no_match", [])
        assert "is empty" in empty["reason"]
        assert put(client, "shoes", "one", digit).status_code == 200
        found = search(client, "shoes", digit).json()
        assert [result["id"] for result in found["results"]] == ["one"]
        assert found["results"][0]["similarity"] > 0.999
        assert found["results"][0]["match_probability"] is None
        assert found["verdict"] == "not_calibrated"
        assert "vouch-build calibrate" in found["reason"]
        assert search(client, "shoes", stranger).json()["query"]["ood"]["flag"] is None

    def test_is_there_after_a_restart(self, serve: START, digit: bytes) -> None:
        first = serve()
        create(first, "shoes")
        put(first, "shoes", "one", digit)
        made = first.get("/v1/galleries").json()["galleries"][-1]
        second = serve()
        assert names(second) == ["digits", "shoes"]
        listed = {one["name"]: one for one in second.get("/v1/galleries").json()["galleries"]}
        assert listed["shoes"]["n_items"] is None  # nobody has asked for it yet
        assert listed["shoes"]["bundle_id"] == made["bundle_id"]
        assert search(second, "shoes", digit).json()["results"][0]["id"] == "one"
        listed = {one["name"]: one for one in second.get("/v1/galleries").json()["galleries"]}
        assert listed["shoes"]["n_items"] == 1

    def test_closed_galleries_with_names_like_an_open_one_are_listed(
        self, serve: START, digit: bytes
    ) -> None:
        first = serve()
        for name in ("shoes", "shoes-2", "old-shoes"):
            create(first, name)
        second = serve()
        search(second, "shoes", digit)
        assert names(second) == ["digits", "old-shoes", "shoes", "shoes-2"]

    def test_is_listed_without_a_bundle_where_its_pointer_is_damaged(
        self, serve: START, tmp_path: Path
    ) -> None:
        create(serve(), "shoes")
        (pointer,) = (tmp_path / "galleries").rglob("CURRENT")
        pointer.write_text("../..", encoding="utf-8")
        listed = serve().get("/v1/galleries").json()["galleries"]
        assert {one["name"]: one["bundle_id"] for one in listed}["shoes"] == ""

    def test_is_created_renamed_and_dropped_for_every_replica(
        self, serve: START, digit: bytes
    ) -> None:
        here, there = serve(), serve()
        create(here, "shoes")
        assert put(there, "shoes", "one", digit).status_code == 200
        here.post("/v1/galleries/shoes/rename", json={"name": "boots"})
        assert search(there, "shoes", digit).status_code == 404
        assert search(there, "boots", digit).json()["results"][0]["id"] == "one"
        here.patch("/v1/galleries/boots", json={"title": "Boots"})
        assert there.get("/v1/galleries/boots").json()["title"] == "Boots"
        there.delete("/v1/galleries/boots", params={"confirm": "boots"})
        assert search(here, "boots", digit).status_code == 404
        assert names(here) == names(there) == ["digits"]

    def test_is_listed_by_every_replica_as_it_is_now(self, serve: START, digit: bytes) -> None:
        here, there = serve(), serve()

        def listed() -> dict[str, Any]:
            found = there.get("/v1/galleries").json()["galleries"]
            return {one["name"]: one for one in found if one["name"] != "digits"}

        create(here, "shoes")
        assert search(there, "shoes", digit).status_code == 200  # it is open there
        put(here, "shoes", "one", digit)
        assert listed()["shoes"]["n_items"] == 1
        here.patch("/v1/galleries/shoes", json={"title": "Shoes"})
        assert listed()["shoes"]["title"] == "Shoes"
        bundle_id = here.post("/v1/galleries/shoes/compact").json()["bundle_id"]
        assert (listed()["shoes"]["bundle_id"], listed()["shoes"]["n_items"]) == (bundle_id, 1)
        here.post("/v1/galleries/shoes/rename", json={"name": "boots"})
        assert listed()["boots"]["bundle_id"] == bundle_id
        assert [*listed()] == ["boots"]
        here.delete("/v1/galleries/boots", params={"confirm": "boots"})
        assert listed() == {}

    def test_is_renamed_with_its_cursors_and_queries(
        self, client: TestClient, digit: bytes, stranger: bytes
    ) -> None:
        create(client, "shoes")
        put(client, "shoes", "one", digit)
        put(client, "shoes", "two", stranger)
        first = search(client, "shoes", digit, data={"limit": "1"}).json()
        renamed = client.post("/v1/galleries/shoes/rename", json={"name": "boots"})
        assert (renamed.status_code, renamed.json()["name"]) == (200, "boots")
        assert client.get("/v1/galleries/shoes").status_code == 404
        page = client.get(
            "/v1/galleries/boots/search/next", params={"cursor": first["next_cursor"]}
        ).json()
        assert [result["id"] for result in page["results"]] == ["two"]
        assert page["cache"] == "hit"
        again = create(client, "shoes")  # the name is free, and has nothing of the other
        assert (again.status_code, again.json()["n_items"]) == (201, 0)
        assert search(client, "shoes", digit).json()["cache"] == "miss"

    def test_is_renamed_with_its_decisions(self, serve: START, tmp_path: Path) -> None:
        log = FeedbackLog(tmp_path / "feedback.sqlite")
        client = serve(feedback=log.path)
        create(client, "shoes")
        [file] = (tmp_path / "galleries" / "names").glob("*.json")
        log.decide(
            Decided(
                gallery=json.loads(file.read_text("utf-8"))["id"],
                bundle="0" * 16,
                query_id="0" * 64,
                decision="none_of_these",
                item_id=None,
                label=None,
                reviewer=None,
                comment=None,
                pairs=(),
                decided_at=moment(),
            )
        )
        client.post("/v1/galleries/shoes/rename", json={"name": "boots"})
        create(client, "shoes")
        kept = {
            name: len(client.get(f"/v1/galleries/{name}/feedback").json()["decisions"])
            for name in ("boots", "shoes", "digits")
        }
        assert kept == {"boots": 1, "shoes": 0, "digits": 0}

    def test_is_compacted_like_any_other(self, client: TestClient, digit: bytes) -> None:
        create(client, "shoes")
        put(client, "shoes", "one", digit)
        compacted = client.post("/v1/galleries/shoes/compact").json()
        assert compacted["bundle_id"] != compacted["previous_id"]
        assert search(client, "shoes", digit).json()["results"][0]["id"] == "one"

    def test_is_dropped_when_it_is_named_twice_and_its_files_go(
        self, client: TestClient, tmp_path: Path
    ) -> None:
        create(client, "shoes")
        for other in ("boots", "shoes2", "my-shoes", "shoe"):
            refused = client.delete("/v1/galleries/shoes", params={"confirm": other})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert client.delete("/v1/galleries/shoes").status_code == 422
        assert names(client) == ["digits", "shoes"]
        gone = client.delete("/v1/galleries/shoes", params={"confirm": "shoes"})
        assert gone.json() == {"gallery": "shoes"}
        assert names(client) == ["digits"]

    @pytest.mark.parametrize(
        ("name", "status", "code"),
        [
            ("digits", 409, "gallery_exists"),
            ("shoes", 409, "gallery_exists"),
            ("../shoes", 422, "invalid_request"),
            ("Shoes", 422, "invalid_request"),
        ],
    )
    def test_has_a_name_that_nothing_else_has(
        self, client: TestClient, name: str, status: int, code: str
    ) -> None:
        create(client, "shoes")
        create(client, "boots")
        for longer in (
            "digit",
            "its",
            "digits2",
            "my-digits",
        ):  # the operator's gallery is `digits`
            assert create(client, longer).status_code == 201
            assert client.delete(f"/v1/galleries/{longer}", params={"confirm": longer}).is_success
        made = create(client, name)
        assert (made.status_code, made.json()["code"]) == (status, code)
        renamed = client.post("/v1/galleries/boots/rename", json={"name": name})
        assert (renamed.status_code, renamed.json()["code"]) == (status, code)

    def test_is_created_like_one_that_there_is(self, client: TestClient) -> None:
        assert create(client, "shoes", like="nothing").status_code == 404
        assert create(client, "shoes", like="digits").status_code == 201
        assert create(client, "boots", like="shoes").status_code == 201

    def test_that_was_built_is_its_operators(self, client: TestClient) -> None:
        path = "/v1/galleries/digits"
        for refused in (
            client.patch(path, json={"title": "Mine"}),
            client.post(f"{path}/rename", json={"name": "mine"}),
            client.delete(path, params={"confirm": "digits"}),
        ):
            assert (refused.status_code, refused.json()["code"]) == (409, "write_refused")

    def test_is_not_created_where_there_is_no_place_for_it(self, serve: START) -> None:
        refused = create(serve(galleries=None), "shoes")
        assert (refused.status_code, refused.json()["code"]) == (409, "write_refused")
        assert "VOUCH_GALLERIES" in refused.json()["detail"]

    def test_is_not_created_where_its_bundle_would_not_be_served(
        self, serve: START, tmp_path: Path
    ) -> None:
        refused = create(serve(bundle_keys=(tmp_path / "publisher.pub",)), "shoes")
        assert (refused.status_code, refused.json()["code"]) == (409, "write_refused")
        assert "VOUCH_SIGNING_KEY" in refused.json()["detail"]

    def test_makes_room_for_others_and_comes_back(self, serve: START, digit: bytes) -> None:
        client = serve(open_galleries=1)
        for name in ("one", "two", "three"):
            create(client, name)
            put(client, name, name, digit)
        metric = re.search(
            r"^vouch_created_galleries_open (\S+)$", client.get("/metrics").text, re.MULTILINE
        )
        assert metric is not None
        assert float(metric[1]) == 1
        for name in ("one", "two", "three"):
            assert search(client, name, digit).json()["results"][0]["id"] == name

    def test_takes_two_places_with_a_bundle_in_the_shadow(self, serve: START, digit: bytes) -> None:
        client = serve(open_galleries=2)
        create(client, "one")
        put(client, "one", "item", digit)
        before = client.post("/v1/galleries/one/compact").json()["previous_id"]
        tried = client.put("/v1/galleries/one/shadow", json={"bundle_id": before})
        assert (tried.status_code, tried.json()["state"]) == (200, "running")
        create(client, "two")
        assert "vouch_created_galleries_open 1.0" in client.get("/metrics").text

    def test_that_cannot_be_opened_harms_no_other(
        self, serve: START, digit: bytes, tmp_path: Path
    ) -> None:
        create(serve(), "broken")
        [entry] = (tmp_path / "galleries" / "names").glob("*.json")
        root = tmp_path / "galleries" / json.loads(entry.read_text("utf-8"))["id"]
        [labels] = root.glob("*/labels.npy")
        labels.write_bytes(b"changed")
        client = serve()
        broken = client.get("/v1/galleries/broken")
        assert (broken.status_code, broken.json()["code"]) == (503, "bundle_tampered")
        assert client.get("/readyz").status_code == 200
        assert names(client) == ["broken", "digits"]
        assert search(client, "digits", digit).status_code == 200


class TestAKeyForSomeGalleries:
    @pytest.fixture
    def acme(self, keys_file: KeysFile) -> dict[str, str]:
        return bearer(keys_file.make("admin", name="acme", galleries=("acme-*",)))

    @pytest.fixture
    def owner(self, keys_file: KeysFile) -> dict[str, str]:
        return bearer(keys_file.make("admin", name="owner"))

    @pytest.fixture
    def client(self, serve: START, keys_file: KeysFile, tmp_path: Path) -> TestClient:
        return serve(keys=keys_file.path, feedback=tmp_path / "feedback.sqlite")

    def test_creates_renames_and_lists_its_own_alone(
        self, client: TestClient, acme: dict[str, str], owner: dict[str, str]
    ) -> None:
        assert create(client, "acme-shoes", acme).status_code == 201
        assert create(client, "other-shoes", owner).status_code == 201
        assert names(client, acme) == ["acme-shoes"]
        assert names(client, owner) == ["acme-shoes", "digits", "other-shoes"]
        refused = create(client, "other-boots", acme)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert all(name in refused.json()["detail"] for name in ("acme-*", "'other-boots'"))
        path = "/v1/galleries/acme-shoes/rename"
        assert client.post(path, json={"name": "boots"}, headers=acme).status_code == 403
        assert client.post(path, json={"name": "acme-boots"}, headers=acme).status_code == 200
        # Of what it cannot see, it cannot even learn that there is something to be like.
        hidden, nothing = (create(client, "acme-2", acme, like=name) for name in ("digits", "none"))
        assert hidden.status_code == nothing.status_code == 404
        assert _said(hidden, "digits") == _said(nothing, "none")

    def test_learns_nothing_of_others_by_any_path(
        self, client: TestClient, acme: dict[str, str], owner: dict[str, str], digit: bytes
    ) -> None:
        """Every path that names a gallery answers for a hidden one as for none, to the letter."""
        create(client, "hidden", owner)
        put(client, "hidden", "one", digit, headers=owner)
        seen = 0
        for route in _routes():
            if "{gallery}" not in route.path:
                continue
            for method in route.methods or ():
                said = []
                for gallery in ("hidden", "digits", "nothing-of-the-kind"):
                    answer = client.request(method, _path(route, gallery), headers=acme)
                    assert answer.status_code == 404, (method, route.path)
                    said.append(_said(answer, gallery))
                    assert set(answer.headers) == set(said[0][1])
                assert said[0][0] == said[1][0] == said[2][0], (method, route.path)
                seen += 1
        assert seen >= 30

    def test_learns_nothing_of_others_where_no_gallery_is_named(
        self, client: TestClient, acme: dict[str, str], owner: dict[str, str], digit: bytes
    ) -> None:
        create(client, "hidden", owner)
        search(client, "hidden", digit, headers=owner)
        for route in _routes():
            if "{gallery}" in route.path or "GET" not in (route.methods or ()):
                continue
            answer = client.get(route.path, headers=acme)
            assert "hidden" not in answer.text, route.path
        metrics = client.get("/metrics", headers=acme)
        assert (metrics.status_code, metrics.json()["code"]) == (403, "forbidden")
        assert "hidden" not in client.get("/metrics", headers=owner).text

    def test_learns_nothing_of_what_others_have_asked(
        self, client: TestClient, acme: dict[str, str], owner: dict[str, str], digit: bytes
    ) -> None:
        for name in ("acme-shoes", "hidden"):
            create(client, name, owner)
        theirs = search(client, "hidden", digit, headers=owner).json()
        assert theirs["cache"] == "miss"
        assert search(client, "hidden", digit, headers=owner).json()["cache"] == "hit"
        decided = client.post(
            "/v1/galleries/acme-shoes/feedback",
            json={"query_id": theirs["query"]["id"], "decision": "none_of_these"},
            headers=acme,
        )
        assert decided.status_code in {404, 409}
        assert search(client, "acme-shoes", digit, headers=acme).json()["cache"] == "miss"

    def test_does_not_see_cursors_of_others(
        self, client: TestClient, acme: dict[str, str], owner: dict[str, str], digit: bytes
    ) -> None:
        for name in ("acme-shoes", "hidden"):
            create(client, name, owner)
            for item in ("one", "two"):
                put(client, name, item, digit, headers=owner)
        cursor = search(client, "hidden", digit, headers=owner, data={"limit": "1"}).json()
        page = client.get(
            "/v1/galleries/acme-shoes/search/next",
            params={"cursor": cursor["next_cursor"]},
            headers=acme,
        )
        assert (page.status_code, page.json()["code"]) == (422, "invalid_cursor")


class TestQuotas:
    @pytest.fixture
    def client(self, serve: START, keys_file: KeysFile) -> TestClient:
        return serve(keys=keys_file.path)

    def test_searches_are_counted_and_end(
        self, client: TestClient, keys_file: KeysFile, digit: bytes
    ) -> None:
        key = bearer(keys_file.make("read", searches="4/month"))
        assert search(client, "digits", digit, headers=key).status_code == 200
        batch = "/v1/galleries/digits/search/batch"
        files = [("images", digit), ("images", digit)]
        assert client.post(batch, files=files, headers=key).status_code == 200
        used = client.get("/v1/usage", headers=key).json()["searches"]
        assert (used["limit"], used["used"]) == (4, 3)
        assert client.post(batch, files=files, headers=key).status_code == 429
        ended = search(client, "digits", digit, headers=key)
        assert (ended.status_code, ended.json()["code"]) == (429, "searches_used_up")
        assert 0 < int(ended.headers["retry-after"]) <= used["period_s"]
        assert client.get("/v1/galleries/digits", headers=key).status_code == 200
        assert client.get("/v1/usage", headers=key).json()["searches"]["used"] == 4

    def test_batch_beyond_the_quota_leaves_what_is_left(
        self, client: TestClient, keys_file: KeysFile, digit: bytes
    ) -> None:
        key = bearer(keys_file.make("read", searches="5/month"))
        files = [("images", digit)] * 8
        refused = client.post("/v1/galleries/digits/search/batch", files=files, headers=key)
        assert (refused.status_code, refused.json()["code"]) == (429, "searches_used_up")
        assert "4 are left for 7 further searches" in refused.json()["detail"]
        assert int(refused.headers["retry-after"]) > 0
        assert client.get("/v1/usage", headers=key).json()["searches"]["used"] == 1

    def test_searches_are_counted_for_all_replicas_and_over_a_restart_in_redis(
        self, serve: START, keys_file: KeysFile, digit: bytes, redis_server: Redis
    ) -> None:
        key = bearer(keys_file.make("read", searches="3/month"))
        # With the default timeout, a slow Redis makes each process count alone.
        shared = {"keys": keys_file.path, "redis_url": redis_server.url, "redis_timeout_s": 60}
        for _ in range(3):
            assert search(serve(**shared), "digits", digit, headers=key).status_code == 200
        client = serve(**shared)
        assert client.get("/v1/usage", headers=key).json()["searches"]["used"] == 3
        assert search(client, "digits", digit, headers=key).status_code == 429

    def test_items_are_kept_up_to_a_number(
        self, client: TestClient, keys_file: KeysFile, digit: bytes
    ) -> None:
        key = bearer(keys_file.make("admin", galleries=("acme-*",), max_items=2))
        create(client, "acme-shoes", key)
        for item in ("one", "two", "two"):  # what replaces another takes no room
            assert put(client, "acme-shoes", item, digit, headers=key).status_code == 200
        third = put(client, "acme-shoes", "three", digit, headers=key)
        assert (third.status_code, third.json()["code"]) == (403, "quota_exceeded")
        client.delete("/v1/galleries/acme-shoes/items/one", headers=key)
        assert put(client, "acme-shoes", "three", digit, headers=key).status_code == 200

    def test_galleries_are_created_up_to_a_number(
        self, client: TestClient, keys_file: KeysFile
    ) -> None:
        key = bearer(keys_file.make("admin", galleries=("acme-*",), max_galleries=1))
        create(client, "other", bearer(keys_file.make("admin")))
        assert create(client, "acme-one", key).status_code == 201
        refused = create(client, "acme-two", key)
        assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded")
        usage = client.get("/v1/usage", headers=key).json()
        assert usage["created_galleries"] == {"limit": 1, "used": 1}
        assert usage["galleries"] == ["acme-*"]

    def test_so_many_galleries_are_created_whoever_asks_at_the_same_moment(
        self, client: TestClient, keys_file: KeysFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two requests find that there is room for one, if they may."""
        key = bearer(keys_file.make("admin", galleries=("acme-*",), max_galleries=1))
        counted, both = CreatedGalleries.n_visible, threading.Barrier(2)

        def counts(created: CreatedGalleries, visible: Callable[[str], bool]) -> int:
            n = counted(created, visible)
            with suppress(threading.BrokenBarrierError):
                both.wait(0.5)
            return n

        monkeypatch.setattr(CreatedGalleries, "n_visible", counts)
        with ThreadPoolExecutor(2) as pool:
            asked = pool.map(lambda name: create(client, name, key), ("acme-one", "acme-two"))
            assert sorted(answer.status_code for answer in asked) == [201, 403]
        assert len(names(client, key)) == 1

    def test_without_keys_nothing_is_limited(self, serve: START) -> None:
        usage = serve().get("/v1/usage").json()
        assert usage["scope"] == "admin"
        assert {usage[name] for name in ("key", "searches", "created_galleries")} == {None}


def _routes() -> list[APIRoute]:
    return [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def _path(route: APIRoute, gallery: str) -> str:
    path = route.path.replace("{gallery}", gallery)
    return re.sub(r"\{\w+(:path)?\}", "1", path)


def _said(answer: Any, gallery: str) -> tuple[str, set[str]]:
    """What an answer says, but for what the request has said itself."""
    problem = answer.json()
    del problem["request_id"]
    return json.dumps(problem).replace(gallery, "…"), set(answer.headers)


def test_what_a_gallery_is_called_within_is_told_to_nobody(serve: START, tmp_path: Path) -> None:
    client = serve(feedback=tmp_path / "feedback.sqlite3")
    assert client.post("/v1/galleries", json={"name": "acme"}).status_code == 201
    [named] = (tmp_path / "galleries" / "names").iterdir()
    inner = json.loads(named.read_text(encoding="utf-8"))["id"]
    missing = client.delete("/v1/galleries/acme/feedback/1")
    assert (missing.status_code, missing.json()["code"]) == (404, "decision_not_found")
    assert inner not in missing.text
