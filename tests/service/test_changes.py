"""Changing a gallery over HTTP: found at once, once, and by whoever may."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError
from starlette.testclient import TestClient

import model_store.bundles.bundle as bundle_module
import vouch_search
from model_store.bundles.bundle import Bundle, open_bundle
from model_store.bundles.directory import activate, bundle_ids, current_id, locate
from model_store.bundles.manifest import Manifest, read_manifest
from model_store.bundles.signatures import (
    new_key,
    read_private_key,
    read_public_key,
    require_signature,
    write_signature,
)
from model_store.gallery import ChangesFile, Delete
from model_store.gallery.files.items import PREVIEWS_FILE, PreviewsWriter
from model_store.gallery.live.log import Transaction
from model_store.items import MAX_ID_LENGTH, MAX_METADATA_BYTES
from model_store.retriever import Retriever
from model_store.sqlite import commit
from service.schemas.items import BatchOptions, UploadOptions
from tests.end_to_end.keys import KeysFile
from tests.end_to_end.questions import picture, search, truncated
from tests.support.bundle_copies import copied, flip_a_byte, republished
from tests.support.image_files import encoded
from tests.support.image_files import picture as picture_of
from tests.support.narrowing import not_none
from tests.support.spoilt_encoders import is_plain, spoil
from tests.support.waiting import wait_until

StartClient = Callable[..., TestClient]

ITEMS = "/v1/galleries/digits/items"
NEXT = "/v1/galleries/digits/search/next"


@pytest.fixture
def root(tmp_path: Path, digits_bundle: Path) -> Path:
    """A directory of bundles of one's own."""
    copied(digits_bundle, tmp_path / "bundles" / digits_bundle.name)
    activate(tmp_path / "bundles", digits_bundle.name)
    return tmp_path / "bundles"


@pytest.fixture
def live(root: Path, start: StartClient) -> TestClient:
    return start(open_bundle(root, "cpu", threads=1))


def put(
    client: TestClient, item_id: str, image: bytes, key: str | None = None, **fields: str
) -> httpx2.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.put(
        f"{ITEMS}/{item_id}", files={"image": ("i", image)}, data=fields, headers=headers
    )


def delete(client: TestClient, item_id: str, key: str | None = None) -> httpx2.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.delete(f"{ITEMS}/{item_id}", headers=headers)


def put_batch(
    client: TestClient, items: list[dict[str, Any]], images: list[bytes], key: str | None = None
) -> httpx2.Response:
    return client.post(
        ITEMS,
        files=[("images", ("i", image)) for image in images],
        data={"items": json.dumps(items)},
        headers={} if key is None else {"Idempotency-Key": key},
    )


def compact(client: TestClient) -> None:
    client.post("/v1/galleries/digits/compact").raise_for_status()


def first(client: TestClient, image: bytes) -> str:
    found: str = search(client, image).json()["results"][0]["id"]
    return found


def n_items(client: TestClient) -> int:
    return int(client.get("/v1/galleries/digits").json()["n_items"])


def with_previews(root: Path, side: int) -> None:
    """Publish the current bundle again as one that keeps previews; its own pictures are small."""
    bundle = root / str(current_id(root))
    changed = root.parent / "with previews"
    copied(bundle, changed)
    with PreviewsWriter(changed / PREVIEWS_FILE, side):
        pass
    republished(changed, root)


def test_an_item_has_its_preview_until_it_is_deleted(root: Path, start: StartClient) -> None:
    with_previews(root, 600)
    live = start(open_bundle(root, "cpu", threads=1))
    put(live, "large", encoded(picture_of(900, 450), "JPEG")).raise_for_status()
    put(live, "small", encoded(picture_of(100, 50))).raise_for_status()
    large, small = (
        live.get(f"{ITEMS}/{name}").json()["preview_url"] for name in ("large", "small")
    )
    for _ in range(2):
        found = live.get(large)
        assert found.headers["Content-Type"] == "image/jpeg"
        assert Image.open(io.BytesIO(found.content)).size == (600, 300)
        assert live.get(small).content == live.get(f"{ITEMS}/small/thumbnail").content
        for tag in (found.headers["ETag"], "*"):
            known = live.get(large, headers={"If-None-Match": tag})
            assert (known.status_code, known.content) == (304, b"")
        etag = found.headers["ETag"]
        both = live.get(large, headers={"If-None-Match": f'"other", {etag}'})
        assert both.status_code == 304
        for tag in ("", etag[:9], f'{etag[:9]}"', f"x{etag[1:]}", f'"other{etag[1:]}', "**"):
            other = live.get(large, headers={"If-None-Match": tag})
            assert (other.status_code, other.content) == (200, found.content), tag
        compact(live)
    result = search(live, encoded(picture_of(900, 450), "JPEG")).json()["results"][0]
    assert (result["id"], result["preview_url"]) == ("large", large)
    put(live, "large", encoded(picture_of(300, 200), "JPEG")).raise_for_status()
    assert Image.open(io.BytesIO(live.get(large).content)).size == (300, 200)
    delete(live, "large").raise_for_status()
    assert live.get(large).status_code == 404
    compact(live)
    assert live.get(large).status_code == 404
    bundle = open_bundle(root, "cpu", threads=1)
    assert PREVIEWS_FILE in bundle.manifest.files


def test_a_gallery_of_thumbnails_has_no_previews(live: TestClient) -> None:
    item = live.get(ITEMS).json()["items"][0]
    assert item["preview_url"] is None
    thumbnail = live.get(item["thumbnail_url"])
    in_place = live.get(item["thumbnail_url"], params={"size": "preview"})
    assert in_place.content == thumbnail.content
    assert in_place.headers["Content-Type"] == thumbnail.headers["Content-Type"]
    assert live.get(item["thumbnail_url"], params={"size": "huge"}).status_code == 422


class TestPuttingAnItem:
    def test_it_is_found_as_soon_as_it_is_acknowledged(
        self, live: TestClient, stranger: bytes
    ) -> None:
        before = n_items(live)
        assert first(live, stranger) != "new/1"
        answer = put(live, "new/1", stranger, label="x", metadata='{"a": [1, null]}')
        assert answer.status_code == 200
        written = answer.json()
        assert (written["id"], written["existed"], written["version"]) == ("new/1", False, 1)
        result = search(live, stranger).json()["results"][0]
        assert result["id"] == "new/1"
        assert result["similarity"] == pytest.approx(1, abs=1e-6)
        assert (result["label"], result["metadata"]) == ("x", {"a": [1, None]})
        assert n_items(live) == before + 1
        picture = live.get(result["thumbnail_url"])
        assert picture.headers["content-type"] in {"image/png", "image/jpeg"}
        assert "x" in live.get("/v1/galleries/digits").json()["labels"]

    def test_it_takes_the_place_of_one_of_its_id(self, live: TestClient, stranger: bytes) -> None:
        item = live.get(ITEMS).json()["items"][0]
        answer = put(live, item["id"], stranger, label="other").json()
        assert answer["existed"] is True
        assert live.get(f"{ITEMS}/{item['id']}").json()["label"] == "other"
        assert first(live, stranger) == item["id"]

    def test_it_is_there_after_a_restart(
        self, live: TestClient, root: Path, start: StartClient, stranger: bytes
    ) -> None:
        put(live, "new", stranger)
        again = start(open_bundle(root, "cpu", threads=1))
        assert first(again, stranger) == "new"

    def test_it_is_embedded_as_a_query_is(self, live: TestClient, stranger: bytes) -> None:
        put(live, "new", stranger)
        as_item = live.get(f"{ITEMS}/new/similar").json()
        as_query = search(live, stranger, limit=11).json()
        assert [r["id"] for r in as_item["results"]] == [r["id"] for r in as_query["results"][1:]]
        first, nearest = as_item["results"][0], as_query["results"][1]
        assert first["similarity_std"] == pytest.approx(nearest["similarity_std"], rel=1e-3)

    @pytest.mark.parametrize(
        ("image", "code"), [(b"", "empty_image"), (truncated(), "corrupt_image")]
    )
    def test_a_bad_image_is_refused_as_in_a_search(
        self, live: TestClient, image: bytes, code: str
    ) -> None:
        before = n_items(live)
        assert put(live, "new", image).json()["code"] == code
        assert live.get(f"{ITEMS}/new").status_code == 404
        assert n_items(live) == before

    @pytest.mark.parametrize("number", [np.nan, 0.0])
    def test_picture_without_an_embedding_is_refused_at_every_door(
        self,
        live: TestClient,
        digit: bytes,
        stranger: bytes,
        number: float,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        spoil(monkeypatch, is_plain, number)
        white = encoded(np.full((28, 28, 3), 255, np.uint8))
        n_before = n_items(live)
        asked: list[httpx2.Response] = [
            search(live, white),
            live.post("/v1/galleries/digits/embed", files={"image": ("i", white)}),
            put(live, "white", white),
        ]
        for response in asked:
            assert (response.status_code, response.json()["code"]) == (422, "no_embedding")
            assert "not finite, or only zeros" in response.json()["detail"]
        several = put_batch(live, [{"id": "white"}, {"id": "digit"}], [white, digit])
        assert several.status_code == 200
        assert several.json()["items"][0]["problem"]["code"] == "no_embedding"
        assert n_items(live) == n_before + 1
        assert search(live, stranger).status_code == 200

    @pytest.mark.parametrize(
        ("item_id", "fields", "said"),
        [
            ("a%00b", {}, "control characters"),
            ("a%0Ab", {}, "control characters"),
            ("a%0A", {}, "control characters"),
            ("%0Aa/b", {}, "control characters"),
            ("%2e%2e", {}, "'.' or '..'"),
            ("%2e", {}, "'.' or '..'"),
            ("a/%2e%2e/b", {}, "'.' or '..'"),
            ("a", {"label": "shoe\0"}, "control characters"),
            ("a", {"label": "shoe\n2026 admin logged in"}, "control characters"),
            ("a", {"label": "\u202egnp.exe"}, "overrides of direction"),
            ("x" * (MAX_ID_LENGTH + 1), {}, str(MAX_ID_LENGTH)),
            ("a", {"metadata": "[1]"}, "dictionary"),
            ("a", {"metadata": "{"}, "JSON"),
            ("a", {"metadata": '{"a": NaN}'}, "JSON"),
            ("a", {"metadata": '{"a":' * 2_000 + "1" + "}" * 2_000}, "nested too deep|recursion"),
            ("a", {"metadata": f'{{"a": {"9" * 5_000}}}'}, "integer of more than 4,300 digits"),
            ("a", {"metadata": json.dumps({"a": "x" * 17_000})}, "16384"),
            ("a", {"label": "x" * 201}, "200"),
            ("a", {"label": " "}, "blank"),
            ("a", {"label": " shoe"}, "must not begin or end with a space"),
            ("a", {"label": "shoe\u00a0"}, "must not begin or end with a space"),
        ],
    )
    def test_what_cannot_be_kept_is_named(
        self, live: TestClient, item_id: str, fields: dict[str, str], said: str
    ) -> None:
        answer = put(live, item_id, picture("PNG"), **fields)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert re.search(said, answer.json()["detail"])

    def test_names_as_people_write_them_are_kept(self, live: TestClient) -> None:
        label = "נעל \u200f(אדום), 👩\u200d🔬\u3000靴"  # marks of direction, joiners, wide spaces
        assert put(live, "...a/.b", picture("PNG"), label=label).status_code == 200
        assert live.get(f"{ITEMS}/...a/.b").json()["label"] == label

    def test_one_bundle_alone_takes_no_changes(
        self, start: StartClient, digits_bundle: Path
    ) -> None:
        client = start(open_bundle(digits_bundle, "cpu", threads=1))
        for answer in (
            put(client, "new", picture("PNG")),
            delete(client, "new"),
            client.patch(f"{ITEMS}/new", json={"label": "x"}),
            put_batch(client, [{"id": "a"}], [picture("PNG")]),
            client.post("/v1/galleries/digits/compact"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (409, "write_refused")


def edit(
    client: TestClient, item_id: str, change: object, key: str | None = None
) -> httpx2.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.patch(f"{ITEMS}/{item_id}", json=change, headers=headers)


class TestEditingAnItem:
    def test_new_label_is_found_by_search_filter_and_facets(
        self, live: TestClient, root: Path, start: StartClient, stranger: bytes
    ) -> None:
        put(live, "new/1", stranger, label="x", metadata='{"a": 1}').raise_for_status()
        before = search(live, stranger).json()["results"][0]
        answer = edit(live, "new/1", {"label": "y"})
        assert answer.status_code == 200
        written = answer.json()
        assert (written["id"], written["existed"], written["version"]) == ("new/1", True, 2)
        for client in (live, start(open_bundle(root, "cpu", threads=1))):
            result = search(client, stranger).json()["results"][0]
            assert {**result, "label": "x"} == before, "nothing but the label has changed"
            assert result["label"] == "y"
            for label, n in (("x", 0), ("y", 1)):
                where = json.dumps({"label": label})
                assert client.get(ITEMS, params={"filter": where}).json()["n_passing"] == n
            assert "y" in client.get("/v1/galleries/digits/labels").json()["labels"]
            assert "x" not in client.get("/v1/galleries/digits/labels").json()["labels"]
        compact(live)
        assert live.get(f"{ITEMS}/new/1").json()["label"] == "y"

    def test_omitted_field_is_unchanged_and_null_removes_the_label(
        self, live: TestClient, stranger: bytes
    ) -> None:
        put(live, "new", stranger, label="x", metadata='{"a": 1}').raise_for_status()
        edit(live, "new", {"metadata": {"b": [2]}}).raise_for_status()
        item = live.get(f"{ITEMS}/new").json()
        assert (item["label"], item["metadata"]) == ("x", {"b": [2]})
        edit(live, "new", {"label": None}).raise_for_status()
        item = live.get(f"{ITEMS}/new").json()
        assert (item["label"], item["metadata"]) == (None, {"b": [2]})

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({}, "names no field to change"),
            ({"labels": "x"}, "did you mean `label`"),
            ({"label": "shoe\n"}, "control characters"),
            ({"label": "x" * 201}, "200"),
            ({"label": " "}, "blank"),
            ({"label": "\u3000\u00a0"}, "blank"),
            ({"metadata": None}, "dictionary"),
            ({"metadata": {"a": "x" * 17_000}}, "16384"),
            ([], "dictionary"),
        ],
    )
    def test_invalid_change_is_refused_by_name(
        self, live: TestClient, change: object, said: str
    ) -> None:
        item = live.get(ITEMS).json()["items"][0]
        answer = edit(live, item["id"], change)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert said in answer.json()["detail"]
        assert live.get(f"{ITEMS}/{item['id']}").json() == item

    def test_missing_item_is_not_found(self, live: TestClient) -> None:
        assert edit(live, "none", {"label": "x"}).json()["code"] == "item_not_found"

    def test_same_key_edits_once(self, live: TestClient) -> None:
        item_id = live.get(ITEMS).json()["items"][0]["id"]
        first, again = (edit(live, item_id, {"label": "x"}, key="1") for _ in range(2))
        assert again.headers["Idempotency-Replayed"] == "true"
        assert again.json() == first.json()
        other = edit(live, item_id, {"label": "y"}, key="1")
        assert other.json()["code"] == "key_reused"

    def test_key_that_may_only_review_is_refused(
        self, root: Path, start: StartClient, keys_file: KeysFile
    ) -> None:
        client = start(open_bundle(root, "cpu", threads=1), keys=keys_file.path)
        tokens = {scope: keys_file.make(scope) for scope in ("review", "write")}
        listed = client.get(ITEMS, headers={"X-API-Key": tokens["write"]}).json()["items"]
        for scope, status in (("review", 403), ("write", 200)):
            answer = client.patch(
                f"{ITEMS}/{listed[0]['id']}",
                json={"label": "x"},
                headers={"X-API-Key": tokens[scope]},
            )
            assert answer.status_code == status


class TestDeletingAnItem:
    def test_it_is_found_no_more(self, live: TestClient, stranger: bytes) -> None:
        put(live, "new", stranger)
        assert delete(live, "new").json()["existed"] is True
        assert first(live, stranger) != "new"
        assert live.get(f"{ITEMS}/new").status_code == 404
        assert delete(live, "new").json()["code"] == "item_not_found"

    def test_all_of_them_leave_a_gallery_that_has_no_match(
        self, root: Path, start: StartClient, digit: bytes, stranger: bytes
    ) -> None:
        opened = open_bundle(root, "cpu", threads=1)
        assert opened.live is not None
        gallery = opened.live.snapshot()
        rows = gallery.page(None, gallery.n_items - 1)
        opened.live.commit([Delete(item.id) for item in gallery.items(rows)])
        live = start(opened)
        [last] = live.get(ITEMS).json()["items"]
        assert delete(live, last["id"]).status_code == 200
        for _ in range(2):
            answer = search(live, digit, filter='{"label": "7"}', group_by="label").json()
            assert (answer["verdict"], answer["results"]) == ("no_match", [])
            assert (answer["no_match_probability"], answer["next_cursor"]) == (1, None)
            assert "is empty" in answer["reason"]
            assert search(live, digit, order="probability").json()["verdict"] == "no_match"
            assert search(live, stranger).json()["verdict"] == "out_of_distribution"
            for path in ("", "/items", "/labels", "/facets", "/calibration"):
                assert live.get(f"/v1/galleries/digits{path}").status_code == 200, path
            assert live.get(f"{ITEMS}/{last['id']}/similar").status_code == 404
            compact(live)
        put(live, "new", digit).raise_for_status()
        assert first(live, digit) == "new"

    def test_one_of_the_bundle_too(self, live: TestClient) -> None:
        item = live.get(ITEMS).json()["items"][0]
        delete(live, item["id"])
        assert live.get(item["thumbnail_url"]).status_code == 404
        assert live.get(ITEMS).json()["items"][0] != item


class TestABatch:
    def test_each_item_has_a_result_or_a_problem_in_its_place(
        self, live: TestClient, stranger: bytes, digit: bytes
    ) -> None:
        items: list[dict[str, Any]] = [{"id": "a", "label": "x"}, {"id": "b"}]
        items.append({"id": "c", "metadata": {"d": 1}})
        answer = put_batch(live, items, [stranger, b"no image", digit])
        assert answer.status_code == 200
        written = answer.json()["items"]
        assert [(one["index"], one["id"], one["status"]) for one in written] == [
            (0, "a", 200),
            (1, "b", 415),
            (2, "c", 200),
        ]
        assert written[1]["problem"]["code"] == "unsupported_image"
        assert written[1]["written"] is written[0]["problem"] is None
        assert first(live, stranger) == "a"
        assert live.get(f"{ITEMS}/c").json()["metadata"] == {"d": 1}
        assert live.get(f"{ITEMS}/b").status_code == 404

    def test_of_bad_images_alone_nothing_is_written(self, live: TestClient) -> None:
        answer = put_batch(live, [{"id": "a"}, {"id": "b"}], [b"", truncated()])
        assert [one["status"] for one in answer.json()["items"]] == [400, 422]

    @pytest.mark.parametrize(
        ("items", "said"),
        [
            ([{"id": "a"}], "1 entries for 2 images"),
            ([{"id": "a"}, {"id": "a"}], "ids repeat"),
            ([{"id": "a"}, {"label": "b"}], "/body/items/1/id"),
            ([{"id": "a"}, {"id": ""}], "at least 1 character"),
        ],
    )
    def test_a_list_that_does_not_fit_is_refused(
        self, live: TestClient, items: list[dict[str, Any]], said: str
    ) -> None:
        answer = put_batch(live, items, [picture("PNG")] * 2)
        assert answer.status_code == 422
        assert said in answer.json()["detail"]


PLACE = {"latitude": 47.37, "longitude": 8.54}
INVALID_PLACE = {"latitude": "47,37", "longitude": "8,54"}


class TestPositions:
    """Of items of a gallery in which a match is an item near the query."""

    @pytest.fixture
    def places(self, root: Path, start: StartClient) -> TestClient:
        bundle = open_bundle(root, "cpu", threads=1)
        retriever = bundle.retriever
        of_places = replace(not_none(retriever.calibration), within=25.0)
        places = Retriever(retriever.encoder, retriever.gallery, of_places)
        return start(replace(bundle, retriever=places))

    def test_invalid_one_is_refused_by_name(self, places: TestClient, stranger: bytes) -> None:
        put(places, "good", stranger, metadata=json.dumps(PLACE)).raise_for_status()
        put(places, "none", stranger).raise_for_status()
        edited = places.patch(f"{ITEMS}/good", json={"metadata": INVALID_PLACE})
        for refused in (put(places, "bad", stranger, metadata=json.dumps(INVALID_PLACE)), edited):
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
            assert "'47,37'" in refused.json()["detail"]
        assert places.get(f"{ITEMS}/good").json()["metadata"] == PLACE
        assert places.get(f"{ITEMS}/bad").status_code == 404

    def test_others_of_a_batch_are_written(self, places: TestClient, stranger: bytes) -> None:
        items = [
            {"id": "good", "metadata": PLACE},
            {"id": "bad", "metadata": INVALID_PLACE},
        ]
        answer = put_batch(places, items, [stranger, stranger]).json()
        assert [one["problem"] and one["problem"]["status"] for one in answer["items"]] == [
            None,
            422,
        ]

    def test_they_are_metadata_like_others_where_labels_match(
        self, live: TestClient, stranger: bytes
    ) -> None:
        put(live, "any", stranger, metadata=json.dumps(INVALID_PLACE)).raise_for_status()


class TestSendingAgain:
    def test_the_same_request_is_answered_the_same_and_done_once(
        self, live: TestClient, stranger: bytes, digit: bytes
    ) -> None:
        written = put(live, "new", stranger, "k1")
        put(live, "new", digit)
        again = put(live, "new", stranger, "k1")
        assert again.json() == written.json()
        assert again.headers["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in written.headers
        assert first(live, stranger) != "new"
        gone = delete(live, "new", "k2")
        assert delete(live, "new", "k2").json() == gone.json()
        batch = put_batch(live, [{"id": "a"}, {"id": "b"}], [b"", digit], "k3")
        assert (
            put_batch(live, [{"id": "a"}, {"id": "b"}], [b"", digit], "k3").json() == batch.json()
        )

    def test_another_request_is_not(self, live: TestClient, stranger: bytes, digit: bytes) -> None:
        put(live, "new", stranger, "key")
        for answer in (
            put(live, "new", digit, "key"),
            put(live, "other", stranger, "key"),
            put(live, "new", stranger, "key", label="x"),
            delete(live, "new", "key"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (422, "key_reused")
        assert live.get(f"{ITEMS}/new").json()["label"] is None

    def test_a_key_is_of_its_caller(
        self, root: Path, start: StartClient, keys_file: KeysFile, stranger: bytes, digit: bytes
    ) -> None:
        ours, theirs = keys_file.make("write"), keys_file.make("write")
        client = start(open_bundle(root, "cpu", threads=1), keys=keys_file.path)
        for text, image in ((ours, stranger), (theirs, digit)):
            client.headers["Authorization"] = f"Bearer {text}"
            assert put(client, "new", image, "key").status_code == 200

    def test_it_is_known_after_a_compaction(self, live: TestClient, stranger: bytes) -> None:
        written = put(live, "new", stranger, "key")
        live.post("/v1/galleries/digits/compact").raise_for_status()
        assert put(live, "new", stranger, "key").json() == written.json()


class TestWhoMay:
    def test_writing_needs_its_scope_and_compacting_admin(
        self, root: Path, start: StartClient, keys_file: KeysFile
    ) -> None:
        keys = {"read": keys_file.make("read"), "write": keys_file.make("write")}
        client = start(open_bundle(root, "cpu", threads=1), keys=keys_file.path)
        ways: tuple[Callable[[], httpx2.Response], ...] = (
            lambda: put(client, "new", picture("PNG")),
            lambda: put_batch(client, [{"id": "a"}], [picture("PNG")]),
            lambda: delete(client, "new"),
            lambda: client.post("/v1/galleries/digits/compact"),
        )
        assert [way().status_code for way in ways] == [401] * 4
        client.headers["X-API-Key"] = keys["read"]
        assert [way().status_code for way in ways] == [403] * 4
        client.headers["X-API-Key"] = keys["write"]
        assert [way().status_code for way in ways] == [200, 200, 200, 403]


class TestCompaction:
    def test_the_gallery_stays_what_it_is(
        self, live: TestClient, root: Path, stranger: bytes, digit: bytes
    ) -> None:
        old, gone = current_id(root), first(live, digit)
        put(live, "new", stranger, label="a new label")
        delete(live, gone)
        before = [search(live, image).json() for image in (stranger, digit)]
        assert 'vouch_pending_changes{gallery="digits"} 1.0' in live.get("/metrics").text
        answer = live.post("/v1/galleries/digits/compact").json()
        assert (answer["previous_id"], answer["bundle_id"]) == (old, current_id(root))
        assert answer["persisted"] is True
        assert 'vouch_pending_changes{gallery="digits"} 0.0' in live.get("/metrics").text
        for image, then in zip((stranger, digit), before, strict=True):
            now = search(live, image).json()
            assert now["cache"] == "hit"  # what is known of an image is known still
            assert [r["id"] for r in now["results"]] == [r["id"] for r in then["results"]]
            assert now["bundle"]["id"] == answer["bundle_id"]
            assert now["bundle"]["calibration"]["status"] == "valid"
        assert put(live, "newer", digit).json()["version"] == 3

    def test_without_changes_there_is_nothing_to_do(self, live: TestClient, root: Path) -> None:
        answer = live.post("/v1/galleries/digits/compact").json()
        assert answer["bundle_id"] == answer["previous_id"] == current_id(root)
        assert len(bundle_ids(root)) == 1

    def test_going_back_goes_back_to_that_moment(
        self, live: TestClient, stranger: bytes, digit: bytes
    ) -> None:
        put(live, "new", stranger)
        live.post("/v1/galleries/digits/compact").raise_for_status()
        put(live, "new", digit)
        live.post("/v1/galleries/digits/bundles/rollback").raise_for_status()
        assert first(live, stranger) == "new"
        assert put(live, "newer", digit).status_code == 200

    def test_it_happens_by_itself(self, root: Path, start: StartClient, stranger: bytes) -> None:
        client = start(open_bundle(root, "cpu", threads=1), compact_after=2, canary_period_s=0.05)
        old = current_id(root)
        put(client, "a", stranger)
        put(client, "b", stranger)
        wait_until(lambda: serving(client) != old)
        assert current_id(root) == serving(client)
        assert client.get(f"{ITEMS}/b").status_code == 200

    def test_signed_bundle_gets_no_unsigned_successor(
        self,
        root: Path,
        start: StartClient,
        stranger: bytes,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Services that require signatures would not open it."""
        key, before = tmp_path / "publisher.key", locate(root)
        public = read_public_key(new_key(key))
        write_signature(before, read_manifest(before), read_private_key(key))
        client = start(open_bundle(root, "cpu", threads=1), compact_after=1, canary_period_s=0.05)
        put(client, "a", stranger)
        refused = client.post("/v1/galleries/digits/compact")
        assert (refused.status_code, refused.json()["code"]) == (409, "write_refused")
        assert f"the bundle {before.name} is signed" in refused.json()["detail"]
        calibrating = client.post("/v1/galleries/digits/calibration", json={})
        assert (calibrating.status_code, calibrating.json()["code"]) == (409, "write_refused")
        signing = start(
            open_bundle(root, "cpu", threads=1),
            signing_key=key,
            compact_after=1,
            canary_period_s=0.05,
        )
        wait_until(lambda: locate(root) != before)
        require_signature(locate(root), read_manifest(locate(root)), {public})
        assert signing.get(f"{ITEMS}/a").status_code == 200
        assert bundle_ids(root) == [before.name, locate(root).name]
        assert "changes not looked after" not in caplog.messages
        assert caplog.messages.count("changes not compacted") == 1  # not again and again

    def test_old_bundles_are_removed_with_their_changes(
        self, root: Path, start: StartClient, stranger: bytes
    ) -> None:
        """But never one that another service has open."""
        ids = [str(current_id(root))]
        slow = start(open_bundle(root, "cpu", threads=1), canary_period_s=60)
        client = start(open_bundle(root, "cpu", threads=1), canary_period_s=0.1, keep_bundles=2)
        for number in range(4):
            put(client, f"n{number}", stranger)
            compact(client)
            ids.append(str(current_id(root)))
        assert ids[0] in bundle_ids(root)
        assert slow.get(f"{ITEMS}/n3").status_code == 200  # it has changed over
        wait_until(lambda: set(bundle_ids(root)) == set(ids[3:]))
        changes = root / "changes"
        wait_until(lambda: {one.name.split(".")[0] for one in changes.iterdir()} == set(ids[3:]))

    def test_no_write_is_lost_while_it_goes_on(
        self, live: TestClient, digit: bytes, stranger: bytes
    ) -> None:
        put(live, "first", stranger)
        statuses: list[int] = []
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                statuses.append(put(live, f"n{len(statuses)}", digit).status_code)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(2):
                live.post("/v1/galleries/digits/compact").raise_for_status()
        finally:
            over.set()
            thread.join()
        assert set(statuses) == {200}
        for number in range(len(statuses)):
            assert live.get(f"{ITEMS}/n{number}").status_code == 200


class TestSeveralServices:
    def test_one_finds_what_another_wrote_at_once(
        self, root: Path, start: StartClient, stranger: bytes
    ) -> None:
        one = start(open_bundle(root, "cpu", threads=1), canary_period_s=60)
        other = start(open_bundle(root, "cpu", threads=1), canary_period_s=60)
        for writer, reader in ((one, other), (other, one)):
            put(writer, "new", stranger)
            assert first(reader, stranger) == "new"
            delete(writer, "new")
            assert reader.get(f"{ITEMS}/new").status_code == 404

    def test_also_where_its_log_does_not_tell_that_there_is_anything(
        self, pair: tuple[TestClient, TestClient], stranger: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As while another process, which was killed, is being recovered from."""
        monkeypatch.setattr(ChangesFile, "mark", lambda _: None)
        one, other = pair
        put(one, "new", stranger)
        assert other.get(f"{ITEMS}/new").status_code == 200

    def test_its_numbers_hear_of_it_in_time(
        self, root: Path, start: StartClient, stranger: bytes
    ) -> None:
        one = start(open_bundle(root, "cpu", threads=1), canary_period_s=60)
        other = start(open_bundle(root, "cpu", threads=1), canary_period_s=0.05)
        put(one, "new", stranger)
        pending = 'vouch_pending_changes{gallery="digits"} 1.0'
        wait_until(lambda: pending in other.get("/metrics").text)

    @pytest.fixture
    def pair(self, root: Path, start: StartClient) -> tuple[TestClient, TestClient]:
        """Two that look at `CURRENT` by themselves after the test only."""
        one, other = (
            start(open_bundle(root, "cpu", threads=1), canary_period_s=60) for _ in range(2)
        )
        return one, other

    def test_one_finds_all_that_another_compacted_and_wrote_at_once(
        self, pair: tuple[TestClient, TestClient], root: Path, stranger: bytes, digit: bytes
    ) -> None:
        for one, other in (pair, pair[::-1]):
            put(one, "new", stranger)
            put(one, "gone", digit)
            compact(one)
            delete(one, "gone")
            put(one, "newer", digit)
            assert other.get(f"{ITEMS}/newer").status_code == 200
            assert other.get(f"{ITEMS}/gone").status_code == 404
            assert serving(other) == serving(one) == current_id(root)
            compact(other)
            delete(other, "new")
            assert "new" not in [r["id"] for r in search(one, stranger).json()["results"]]
            assert put(one, "newest", digit).status_code == 200
            assert other.get(f"{ITEMS}/newest").status_code == 200

    def test_going_back_is_followed_at_once_too(
        self, pair: tuple[TestClient, TestClient], stranger: bytes, digit: bytes
    ) -> None:
        one, other = pair
        put(one, "before", stranger)
        compact(one)
        assert put(one, "after", digit).status_code == 200
        assert other.get(f"{ITEMS}/after").status_code == 200
        one.post("/v1/galleries/digits/bundles/rollback").raise_for_status()
        assert other.get(f"{ITEMS}/after").status_code == 404
        assert other.get(f"{ITEMS}/before").status_code == 200

    def test_one_that_cannot_follow_says_so_until_it_can(
        self,
        pair: tuple[TestClient, TestClient],
        root: Path,
        stranger: bytes,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        one, other = pair
        put(one, "gone", stranger)
        compact(one)
        delete(one, "gone")
        file = root / str(current_id(root)) / "norms.npy"
        flip_a_byte(file)
        for _ in range(2):
            refused = other.get(f"{ITEMS}/gone")
            assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
            assert "norms.npy differs" in refused.json()["detail"]
            assert "Retry-After" in refused.headers
        ready = other.get("/readyz")
        assert (ready.status_code, ready.json()["code"]) == (503, "not_ready")
        assert put(other, "x", stranger).status_code == 503
        assert one.get("/readyz").status_code == 200
        flip_a_byte(file)
        monkeypatch.setattr("service.serving.served.RETRY_REFUSED_S", 0.0)
        assert other.get(f"{ITEMS}/gone").status_code == 404
        assert other.get("/readyz").status_code == 200

    def test_one_that_takes_long_to_follow_does_not_answer_meanwhile(
        self,
        pair: tuple[TestClient, TestClient],
        stranger: bytes,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        one, other = pair
        may_open = threading.Event()

        def slowly(directory: Path) -> Manifest:
            assert may_open.wait(60)
            return read_manifest(directory)

        put(one, "gone", stranger)
        compact(one)
        delete(one, "gone")
        monkeypatch.setattr("service.serving.registry.SWITCH_TIMEOUT_S", 0.2)
        with monkeypatch.context() as patched:
            patched.setattr(bundle_module, "read_manifest", slowly)
            for path in (f"{ITEMS}/gone", "/readyz"):
                assert other.get(path).json()["code"] == "not_ready"
            may_open.set()
            wait_until(lambda: other.get("/readyz").status_code == 200)
        assert other.get(f"{ITEMS}/gone").status_code == 404

    def test_a_bundle_that_nobody_wrote_to_leaves_the_old_one_ready(
        self, pair: tuple[TestClient, TestClient], root: Path, stranger: bytes
    ) -> None:
        """Until somebody does: then what he was told is nowhere but there."""
        one, other = pair
        put(one, "new", stranger)
        published = republished(root / str(current_id(root)), root, description="other")
        flip_a_byte(root / published / "norms.npy")
        assert other.get(f"{ITEMS}/new").status_code == 200
        assert other.get("/readyz").status_code == 200
        bundles = "/v1/galleries/digits/bundles"
        wait_until(lambda: other.get(bundles).json()["refused"] is not None)  # or it may be whole
        flip_a_byte(root / published / "norms.npy")
        one.post(f"/v1/galleries/digits/bundles/{published}/activate").raise_for_status()
        put(one, "newer", stranger)
        flip_a_byte(root / published / "norms.npy")
        for path in (f"{ITEMS}/newer", "/readyz"):
            assert other.get(path).json()["code"] == "not_ready"


class TestLists:
    def test_a_search_goes_on_in_the_gallery_it_began_in(
        self, live: TestClient, stranger: bytes
    ) -> None:
        page = search(live, stranger, limit=3).json()
        put(live, "new", stranger)
        following = live.get(NEXT, params={"cursor": page["next_cursor"]}).json()
        ids = [result["id"] for result in page["results"] + following["results"]]
        assert "new" not in ids
        delete(live, "new")
        assert ids == [r["id"] for r in search(live, stranger, limit=6).json()["results"]]

    def test_its_further_pages_show_nothing_that_is_there_no_more(
        self, root: Path, start: StartClient, stranger: bytes, digit: bytes
    ) -> None:
        """Also to a service that was started since; what is still there keeps its rank."""
        client = start(open_bundle(root, "cpu", threads=1))
        everything = search(client, stranger, limit=30).json()["results"]
        page = search(client, stranger, limit=3).json()
        gone, replaced = (everything[i]["id"] for i in (4, 6))
        delete(client, gone)
        put(client, replaced, digit, label="secret before")
        page_of_now = search(client, stranger, limit=3).json()
        put(client, replaced, digit, label="now")
        following: list[dict[str, Any]] = []
        for service in (client, start(open_bundle(root, "cpu", threads=1))):
            search(service, stranger)  # the query must be known there
            for answer in (page, page_of_now):
                while (cursor := {"cursor": answer["next_cursor"]})["cursor"] is not None:
                    answer = service.get(NEXT, params=cursor).json()  # noqa: PLW2901
                    following.append(answer)
        said = json.dumps(following)
        assert f'"{gone}"' not in said
        assert "secret before" not in said
        shown = [(r["rank"], r["id"]) for answer in following[:9] for r in answer["results"]]
        still = [(r["rank"], r["id"]) for r in everything[3:] if r["id"] not in {gone, replaced}]
        assert shown[: len(still)] == still

    def test_further_pages_omit_an_edited_item_as_documented(
        self, live: TestClient, stranger: bytes
    ) -> None:
        everything = search(live, stranger, limit=6).json()["results"]
        page = search(live, stranger, limit=3).json()
        edited = everything[4]["id"]
        edit(live, edited, {"label": "another"}).raise_for_status()
        following = live.get(NEXT, params={"cursor": page["next_cursor"]}).json()
        shown = [(result["rank"], result["id"]) for result in following["results"]]
        assert shown == [(4, everything[3]["id"]), (6, everything[5]["id"])]
        path = live.get("/openapi.json").json()["paths"]["/v1/galleries/{gallery}/search/next"]
        assert "deleted, replaced or edited" in path["get"]["description"]

    def test_a_list_of_items_goes_on_whatever_is_written(
        self, live: TestClient, stranger: bytes
    ) -> None:
        page = live.get(ITEMS, params={"limit": 2}).json()
        ids = [item["id"] for item in page["items"]]
        put(live, "0-before", stranger)
        put(live, "zz-behind", stranger)
        delete(live, ids[-1])
        while page["next_cursor"] is not None:
            page = live.get(ITEMS, params={"limit": 100, "cursor": page["next_cursor"]}).json()
            ids += [item["id"] for item in page["items"]]
        assert ids == sorted(set(ids))
        assert ids[-1] == "zz-behind"
        assert "0-before" not in ids
        assert len(ids) == n_items(live)  # one was seen and is gone, one came and was not seen


def test_many_changes_make_the_calibration_stale(
    live: TestClient, bundle: Bundle, digit: bytes
) -> None:
    n = bundle.retriever.gallery.n_items
    ids = [
        item.id for item in bundle.retriever.gallery.items(bundle.retriever.gallery.page(None, n))
    ]

    def state() -> dict[str, Any]:
        told: dict[str, Any] = search(live, digit).json()["bundle"]["calibration"]
        return told

    for item_id in ids[: n // 10]:
        delete(live, item_id)
    assert state()["status"] == "valid"
    delete(live, ids[n // 10])
    assert state()["status"] == "stale"
    assert f"{n // 10 + 1} items have been added, replaced or removed" in state()["reason"]


def test_what_is_kept_is_not_said_to_be_lost_where_the_disk_fails_afterwards(
    live: TestClient, stranger: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(live, "before", stranger).raise_for_status()
    add = Transaction.add

    def broken(_: object) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    def add_and_break(turn: Transaction, *writes: Any) -> Any:
        added = add(turn, *writes)
        monkeypatch.setattr("model_store.gallery.live.rows.first_sequence", broken)
        return added

    monkeypatch.setattr(Transaction, "add", add_and_break)
    first, again = (put(live, "kept", stranger, key="a key") for _ in range(2))
    assert (first.status_code, first.json()["id"]) == (200, "kept")  # it is stored and searchable
    assert (again.status_code, again.json()["code"]) == (503, "storage_failed")
    assert "disk I/O error" in again.json()["detail"]
    assert "Nothing was changed" not in first.text + again.text
    monkeypatch.undo()
    found = put(live, "kept", stranger, key="a key")
    assert (found.status_code, found.headers["Idempotency-Replayed"]) == (200, "true")
    assert live.get(f"{ITEMS}/kept").status_code == 200


def test_of_what_the_disk_does_not_confirm_the_code_says_that_nobody_knows(
    live: TestClient, stranger: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(live, "before", stranger).raise_for_status()

    class Disk:
        def execute(self, _: str) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error

    monkeypatch.setattr("model_store.sqlite.commit", lambda _, path: commit(Disk(), path))  # type: ignore[arg-type] # as much of a connection as is asked
    told = put(live, "perhaps", stranger, key="a key")
    assert (told.status_code, told.json()["code"]) == (503, "change_unconfirmed")
    assert "Retry-After" in told.headers
    assert "Nothing was changed" not in told.text
    monkeypatch.undo()
    assert put(live, "perhaps", stranger, key="a key").status_code in {200, 201}
    assert live.get(f"{ITEMS}/perhaps").status_code == 200


def test_directory_that_was_moved_is_named_until_it_is_moved_back(
    live: TestClient, root: Path, stranger: bytes, digit: bytes
) -> None:
    put(live, "mine", stranger).raise_for_status()
    moved = root.rename(root.with_name("moved"))
    for answer in (
        search(live, stranger),
        live.get(f"{ITEMS}/mine"),
        put(live, "another", digit),
        live.post("/v1/galleries/digits/compact"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_failed")
    assert "the directory was moved or removed" in search(live, stranger).json()["detail"]
    assert not root.exists()
    moved.rename(root)
    assert search(live, stranger).json()["results"][0]["id"] == "mine"
    assert put(live, "another", digit).status_code == 200
    compact(live)
    assert search(live, digit).status_code == 200


def test_what_is_written_is_counted(live: TestClient, digit: bytes) -> None:
    put_batch(live, [{"id": "a"}, {"id": "b"}, {"id": "c"}], [digit, digit, b""])
    delete(live, "a")
    metrics = live.get("/metrics").text
    assert 'vouch_items_written_total{change="put",gallery="digits"} 2.0' in metrics
    assert 'vouch_items_written_total{change="deleted",gallery="digits"} 1.0' in metrics


def serving(client: TestClient) -> str:
    return str(client.get("/v1/galleries/digits/bundles").json()["serving"])


def test_metadata_has_up_to_16_kib_and_a_label_up_to_200_characters() -> None:
    frame = len(json.dumps({"a": ""}))
    just, more = (json.dumps({"a": "x" * (2**14 - frame + n)}) for n in (0, 1))
    assert len(just) == MAX_METADATA_BYTES
    assert UploadOptions(label="é" * 200, metadata=just).metadata["a"]
    with pytest.raises(ValidationError, match="16385 bytes"):
        UploadOptions(metadata=more)
    with pytest.raises(ValidationError, match="200"):
        UploadOptions(label="é" * 201)


@pytest.mark.parametrize(("n", "n_different"), [(1, 1), (2, 2), (2, 1)])
def test_ids_of_a_batch_are_different(n: int, n_different: int) -> None:
    items = json.dumps([{"id": f"i{number % n_different}"} for number in range(n)])
    if n == n_different:
        assert len(BatchOptions(items=items).items) == n
    else:
        with pytest.raises(ValidationError, match="ids repeat"):
            BatchOptions(items=items)


def test_label_that_loses_its_last_item_withdraws_guarantee(
    live: TestClient, root: Path, digit: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of eight labels is more than may change here, which would be stale: that is set aside."""
    monkeypatch.setattr("model_store.decision.calibration.TOLERATED_CHANGES", 0.5)
    before = search(live, digit).json()
    label = "7" if before["results"][0]["label"] != "7" else "6"
    asked = {"limit": "100", "filter": json.dumps({"label": label})}
    while found := live.get(ITEMS, params=asked).json()["items"]:
        for one in found:
            delete(live, one["id"]).raise_for_status()
    after = search(live, digit).json()
    assert (after["verdict"], after["guaranteed"]) == (before["verdict"], False)
    state = after["bundle"]["calibration"]
    assert (before["bundle"]["calibration"]["status"], state["status"]) == ("valid", "drifting")
    assert state["reason_code"]["code"] == "labels_gone"
    report = live.get("/v1/galleries/digits/calibration").json()
    assert report["status"] == "drifting"
    with vouch_search.open(root) as gallery:
        own = gallery.search(digit)
    assert own.guaranteed is False
    assert own.bundle.calibration.model_dump() == state
