"""A bundle that answers in the shadow: counted, followed, ended, and never in anybody's way."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scipy.stats import binomtest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import SHADOW_FILE, ShadowTerms, activate
from model_store.errors import ActivationRefused
from model_store.gallery import FaissGallery, NewItem, Thumbnail, write_faiss_gallery
from service.scheduling import FairShare
from service.serving import shadow as shadow_room
from service.serving import shadows as shadows_room
from service.serving.queries import SearchParameters
from service.serving.shadow import MOST_WAITING, Shadow, SpareRoom, Tried
from tests.end_to_end.processes import wait_until
from tests.end_to_end.questions import picture, search
from tests.laws.gallery_laws import random_embeddings
from tests.support.bundle_copies import copied, flip_a_byte, republished

StartClient = Callable[..., TestClient]

PATH = "/v1/galleries/digits/shadow"
N_PICTURES = 6


@pytest.fixture(scope="module")
def pictures(digits_bundle: Path) -> list[bytes]:
    """Digits, and noise."""
    samples = sorted((digits_bundle / "samples").glob("*"))[:N_PICTURES]
    return [path.read_bytes() for path in samples] + [picture("PNG", seed=1)]


@pytest.fixture
def root(digits_bundle: Path, uncalibrated_bundle: Path, tmp_path: Path) -> Path:
    """A directory of the digits, and of the digits without a calibration."""
    root = tmp_path / "bundles"
    for bundle in (digits_bundle, uncalibrated_bundle):
        copied(bundle, root / bundle.name)
    activate(root, digits_bundle.name)
    return root


@pytest.fixture
def live(bundle: Bundle, root: Path) -> Bundle:
    """The digits, as one of several bundles."""
    return replace(bundle.within(root), directory=root / bundle.manifest.id)


@pytest.fixture
def bare(uncalibrated_bundle: Path) -> str:
    return uncalibrated_bundle.name


@pytest.fixture
def client(start: StartClient, live: Bundle) -> TestClient:
    return start(live)


@pytest.fixture(scope="module")
def some_answer(bundle: Bundle, digit: bytes) -> Any:
    return bundle.retriever.search(digit, limit=1)


def put(client: TestClient, bundle_id: str, **more: Any) -> dict[str, Any]:
    response = client.put(PATH, json={"bundle_id": bundle_id, **more})
    assert response.status_code == 200, response.json()
    report: dict[str, Any] = response.json()
    return report


def report_of(client: TestClient) -> dict[str, Any]:
    report: dict[str, Any] = client.get(PATH).json()
    return report


def wait_for(client: TestClient, **wanted: Any) -> dict[str, Any]:
    """Return the report that says so, as soon as there is one."""
    wait_until(lambda: wanted.items() <= report_of(client).items())
    return report_of(client)


def said(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what is of the request; a cursor says until when it is taken."""
    of_request = {"request_id", "timing_ms", "next_cursor"}
    return {name: answer[name] for name in answer.keys() - of_request}


class TestAShadow:
    def test_is_compared_and_live_answers_are_the_same_to_the_bit(
        self, start: StartClient, live: Bundle, bare: str, pictures: list[bytes]
    ) -> None:
        without = start(live)
        alone = [search(without, image).json() for image in pictures]
        client = start(live)
        begun = put(client, bare, share=1)
        assert (begun["state"], begun["n_compared"], begun["bundle_id"]) == ("running", 0, bare)
        assert (begun["live_bundle_id"], begun["persisted"]) == (live.manifest.id, True)
        assert begun["changed"] == {"n": 0, "share": None, "interval": [0, 1]}
        beside = [search(client, image).json() for image in pictures]
        n = len(pictures)
        report = wait_for(client, n_compared=n)
        assert [said(one) for one in beside] == [said(one) for one in alone]
        assert (report["n_dropped"], report["n_failed"], report["n_waiting"]) == (0, 0, 0)
        old = Counter(one["verdict"] for one in alone)
        assert {(one["old"], one["new"]): one["n"] for one in report["verdicts"]} == {
            (verdict, "not_calibrated"): count for verdict, count in old.items()
        }
        flags = Counter(one["query"]["ood"]["flag"] for one in alone)
        assert {(one["old"], one["new"]): one["n"] for one in report["outliers"]} == {
            (flag, None): count for flag, count in flags.items()
        }
        for share, count in (
            (report["same_first"], n),  # of one encoder
            (report["changed"], n),
            (report["outlier_old"], flags[True]),
            (report["outlier_new"], 0),
        ):
            exact = binomtest(count, n).proportion_ci(0.95, "exact")
            assert (share["n"], share["share"]) == (count, count / n)
            assert share["interval"] == pytest.approx([exact.low, exact.high])
        assert {one["reason"]: one["n"] for one in report["reasons"]} == {
            reason: count
            for reason, count in (
                ("outlier", old["out_of_distribution"]),
                (
                    "promise",
                    sum(one["reason"] is None for one in alone) - old["out_of_distribution"],
                ),
                ("probability", sum(one["reason"] is not None for one in alone)),
            )
            if count
        }
        assert report["probability_change"] == {"n": 0, "mean": None, "interval": [-1, 1]}
        assert [one["query_id"] for one in report["recent"]] == [
            one["query"]["id"] for one in alone[::-1]
        ]
        newest = report["recent"][0]["old"]
        first = alone[-1]["results"][0]
        assert (newest["item_id"], newest["name"]) == (first["id"], first["label"])
        assert newest["match_probability"] == pytest.approx(first["match_probability"])
        assert {one["image_url"] for one in report["recent"]} == {None}

        metrics = client.get("/metrics").text
        counted = f'vouch_shadow_queries_total{{gallery="digits",outcome="compared"}} {n}.0'
        assert counted in metrics
        assert f'vouch_shadow_same_first_total{{gallery="digits"}} {n}.0' in metrics
        assert f'vouch_shadow_info{{bundle="{bare}",gallery="digits"}} 1.0' in metrics
        search(client, pictures[0])  # each picture counts once
        ended = client.delete(PATH).json()
        assert (ended["state"], ended["n_compared"], ended["recent"]) == ("ended", n, [])
        assert client.get(PATH).json()["code"] == "shadow_not_found"
        assert client.delete(PATH).status_code == 404
        assert not (live.directory.parent / SHADOW_FILE).exists()

    def test_goes_on_after_a_restart_and_ends_when_it_is_activated(
        self, start: StartClient, live: Bundle, bare: str, root: Path, digit: bytes
    ) -> None:
        put(start(live), bare, share=1)
        client = start(live, canary_period_s=0.1)
        wait_until(lambda: client.get(PATH).status_code == 200)
        assert report_of(client)["share"] == 1
        search(client, digit)
        wait_for(client, n_compared=1)
        client.post(f"/v1/galleries/digits/bundles/{bare}/activate").raise_for_status()
        ended = report_of(client)
        assert (ended["state"], ended["n_compared"]) == ("ended", 1)
        assert "was activated" in ended["reason"]
        wait_until(lambda: not (root / SHADOW_FILE).exists())
        assert report_of(client)["reason"] == ended["reason"]
        assert search(client, digit).json()["verdict"] == "not_calibrated"

    def test_begins_anew_with_the_next_bundle_that_is_served(
        self, start: StartClient, live: Bundle, bare: str, root: Path, digits_bundle: Path
    ) -> None:
        third = republished(digits_bundle, root, description="third")
        activate(root, live.manifest.id)
        client = start(live, canary_period_s=0.1)
        put(client, bare)
        client.post(f"/v1/galleries/digits/bundles/{third}/activate").raise_for_status()
        begun = wait_for(client, state="running", live_bundle_id=third)
        assert (begun["bundle_id"], begun["share"]) == (bare, 0.1)

    def test_ends_where_another_process_ends_it(
        self, start: StartClient, live: Bundle, bare: str
    ) -> None:
        here, there = start(live, canary_period_s=0.1), start(live, canary_period_s=0.1)
        put(here, bare)
        wait_until(lambda: there.get(PATH).status_code == 200)
        here.delete(PATH)
        wait_for(there, state="ended", reason="It was ended.")

    def test_goes_on_where_nothing_can_be_written(
        self, client: TestClient, bare: str, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(shadows_room, "write_shadow", refuse)
        assert put(client, bare)["persisted"] is False
        assert report_of(client)["state"] == "running"
        assert client.delete(PATH).status_code == 200
        assert client.get(PATH).status_code == 404
        assert not (root / SHADOW_FILE).exists()

    def test_that_raises_harms_nobody_and_logs_nothing_of_the_query(
        self,
        client: TestClient,
        bare: str,
        pictures: list[bytes],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        async def fail(*_: object) -> None:
            raise RuntimeError("of the query")

        monkeypatch.setattr(shadows_room, "_answer", fail)
        put(client, bare, share=1)
        with caplog.at_level(logging.WARNING):
            assert all(search(client, image).status_code == 200 for image in pictures)
            wait_for(client, n_failed=len(pictures), n_compared=0)
        [record] = [one for one in caplog.records if one.levelno >= logging.WARNING]
        fields = {"gallery": "digits", "bundle": bare, "reason": "RuntimeError"}
        assert record.__dict__["fields"] == fields

    def test_has_nothing_to_do_while_the_service_is_busy(
        self,
        client: TestClient,
        bare: str,
        pictures: list[bytes],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(FairShare, "is_idle", property(lambda _: False))
        monkeypatch.setattr(shadow_room, "PATIENCE_S", 0.02)
        put(client, bare, share=1)
        for image in pictures:
            search(client, image)
        wait_for(client, n_dropped=len(pictures), n_compared=0)

    def test_shows_pictures_that_are_kept_and_forgets_those_that_are_not(
        self, start: StartClient, live: Bundle, bare: str, tmp_path: Path, stranger: bytes
    ) -> None:
        client = start(live, feedback=tmp_path / "feedback.sqlite3", review_reasons=["alien"])
        put(client, bare, share=1)
        query_id = search(client, stranger).json()["query"]["id"]
        wait_for(client, n_compared=1)
        client.get("/v1/galleries/digits/review").raise_for_status()  # has it written
        [changed] = report_of(client)["recent"]
        assert (changed["query_id"], changed["reason"]) == (query_id, "outlier")
        assert client.get(changed["image_url"]).headers["content-type"].startswith("image/")
        client.delete(f"/v1/galleries/digits/review/{query_id}").raise_for_status()
        report = report_of(client)
        assert (report["recent"], report["n_compared"]) == ([], 1)


class TestRefused:
    @pytest.mark.parametrize(
        ("said", "status", "code", "detail"),
        [
            ({"bundle_id": "0" * 16}, 404, "bundle_not_found", "vouch-build publish"),
            ({"bundle_id": "../digits"}, 404, "bundle_not_found", "no bundle '../digits'"),
            ({"bundle_id": "x", "share": 0}, 422, "invalid_request", "share"),
            ({}, 422, "invalid_request", "bundle_id"),
        ],
    )
    def test_is_what_cannot_be_tried(
        self, client: TestClient, said: dict[str, Any], status: int, code: str, detail: str
    ) -> None:
        refused = client.put(PATH, json=said)
        assert (refused.status_code, refused.json()["code"]) == (status, code)
        assert detail in refused.text
        assert client.get(PATH).status_code == 404

    def test_is_the_bundle_that_is_served(self, client: TestClient, live: Bundle) -> None:
        refused = client.put(PATH, json={"bundle_id": live.manifest.id})
        assert (refused.status_code, refused.json()["code"]) == (409, "activation_refused")
        assert "the one that answers" in refused.json()["detail"]

    def test_is_another_gallery_a_damaged_bundle_and_a_bundle_alone(
        self, start: StartClient, live: Bundle, bare: str, root: Path, bare_bundle: Bundle
    ) -> None:
        other = republished(root / live.manifest.id, root, name="letters")
        activate(root, live.manifest.id)
        flip_a_byte(root / bare / "labels.npy")
        client = start(live)
        for bundle_id, detail in ((other, "the gallery 'letters'"), (bare, "labels.npy")):
            refused = client.put(PATH, json={"bundle_id": bundle_id})
            assert (refused.status_code, refused.json()["code"]) == (409, "activation_refused")
            assert detail in refused.json()["detail"]
        alone = start(bare_bundle).put(PATH, json={"bundle_id": bare})
        assert (alone.status_code, alone.json()["code"]) == (409, "activation_refused")

    def test_is_a_gallery_without_an_item_in_common(self, tmp_path: Path) -> None:
        bundles = []
        for name in ("ab", "bc", "cd"):
            folder = tmp_path / name
            folder.mkdir()
            items = [NewItem(one, None, {}, Thumbnail(b"", "image/png")) for one in name]
            write_faiss_gallery(folder, random_embeddings(2, 4, 0), items, "f" * 64)
            retriever = SimpleNamespace(gallery=FaissGallery(folder))
            manifest = SimpleNamespace(id=name)
            bundles.append(SimpleNamespace(name="g", manifest=manifest, retriever=retriever))
        ab, bc, cd = bundles
        require: Any = shadows_room._require_common_item
        require(ab, bc)
        with pytest.raises(ActivationRefused, match="cd has no item in common with"):
            require(ab, cd)

    def test_is_known_after_a_restart_what_cannot_be_opened_any_more(
        self, start: StartClient, live: Bundle, root: Path
    ) -> None:
        (root / SHADOW_FILE).write_text(json.dumps({"bundle_id": "0" * 16, "share": 0.5}))
        client = start(live)
        wait_until(lambda: client.get(PATH).status_code == 200)
        report = report_of(client)
        assert (report["state"], report["n_compared"]) == ("ended", 0)
        assert "no bundle '0000000000000000'" in report["reason"]

    @pytest.mark.parametrize("text", ["", "{}", '{"bundle_id": "..", "share": 1}', "[]"])
    def test_is_a_pointer_that_says_nothing(
        self,
        start: StartClient,
        live: Bundle,
        root: Path,
        text: str,
        digit: bytes,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        (root / SHADOW_FILE).write_text(text)
        client = start(live, canary_period_s=0.05)
        wait_until(lambda: "SHADOW cannot be read" in caplog.messages)
        assert search(client, digit).status_code == 200
        assert client.get(PATH).status_code == 404
        assert caplog.messages.count("SHADOW cannot be read") == 1


@pytest.mark.anyio
class TestItsQueue:
    def shadow(self, tried: Any) -> tuple[Shadow, Counter[str]]:
        told: Counter[str] = Counter()

        async def close() -> None:
            told["closed"] += 1

        return Shadow(
            "g",
            "0" * 16,
            ShadowTerms("1" * 16, 1.0),
            SpareRoom(lambda: True, asyncio.Lock()),
            lambda outcome, _: told.update([outcome]),
            Tried(tried, close),
        ), told

    def offer(self, shadow: Shadow, number: int, answer: Any, size: int = 1) -> None:
        found: Any = SimpleNamespace(query_id=f"{number:064x}", answer=answer)
        shadow.offer(b"x" * size, SearchParameters(1), found)

    async def test_is_bounded_in_number_and_size(self, some_answer: Any) -> None:
        shadow, told = self.shadow(None)
        self.offer(shadow, 0, some_answer, shadow_room.MOST_WAITING_BYTES + 1)
        for number in range(1, MOST_WAITING + 3):
            self.offer(shadow, number, some_answer)
        assert (shadow.n_waiting, told["dropped"]) == (MOST_WAITING, 3)
        await shadow.close("done")
        assert (shadow.n_waiting, told["closed"], shadow.ended) == (0, 1, "done")
        self.offer(shadow, 99, some_answer)
        assert shadow.n_waiting == 0

    async def test_forgets_what_waits_and_what_is_being_answered(self, some_answer: Any) -> None:
        asked = asyncio.Event()
        answered = asyncio.Event()

        async def answer(*_: object) -> Any:
            asked.set()
            await answered.wait()
            first = some_answer.matches[0]
            other = first.model_copy(update={"id": "other", "label": "other"})
            return replace(some_answer, matches=(other,))

        shadow, told = self.shadow(answer)
        for number in (1, 2, 3):
            self.offer(shadow, number, some_answer)
        await asked.wait()
        shadow.forget(f"{1:064x}")
        shadow.forget(f"{2:064x}")
        answered.set()
        await asyncio.to_thread(wait_until, lambda: told["compared"] == 2)
        assert [one.query_id for one in shadow.recent] == [f"{3:064x}"]
        assert shadow.compared.reasons == {"first_item": 2}
        await shadow.close("done")

    async def test_draws_the_same_share_of_queries_everywhere(self, some_answer: Any) -> None:
        waiting = []
        for _ in range(2):
            shadow, _ = self.shadow(None)
            shadow.terms = ShadowTerms("1" * 16, 0.1)
            for number in range(400):
                self.offer(shadow, number, some_answer)
            waiting.append(set(shadow._waiting))
            await shadow.close("done")
        assert waiting[0] == waiting[1]
        assert 20 < len(waiting[0]) < 60
