"""What the service answers when all is well: the core's numbers, in the API's words."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import vouch_search
from model_store.bundles.bundle import Bundle
from model_store.decision import outcome_of
from model_store.gallery import Gallery
from service import schemas
from service.client.mcp_tools import search_in_words
from service.http.routes.items import ICON_SIDE
from service.settings import Settings
from tests.end_to_end.questions import assess, picture, search
from tests.support.waiting import wait_until

StartClient = Callable[..., TestClient]


class TestASearch:
    def test_http_answer_equals_that_of_an_opened_gallery(
        self, client: TestClient, digits_bundle: Path, digit: bytes
    ) -> None:
        served = search(client, digit, limit=7).json()
        with vouch_search.open(digits_bundle) as gallery:
            found = gallery.search(digit, k=7).model_dump(mode="json")
        for answer in (served, found):
            for of_one_request in ("request_id", "timing_ms", "next_cursor", "cache"):
                del answer[of_one_request]
            for result in answer["results"]:
                del result["thumbnail_url"]
        assert found == served

    def test_it_says_what_the_library_says(
        self, client: TestClient, bundle: Bundle, digit: bytes
    ) -> None:
        served = search(client, digit, limit=7).json()
        answer = bundle.retriever.search(digit, limit=7)
        decision = answer.decision
        calibration = bundle.retriever.calibration
        assert decision.match_probabilities is not None
        assert calibration is not None
        assert served["gallery"] == "digits"
        assert served["verdict"] == decision.verdict
        assert served["query"]["uncertainty"] == {
            "value": answer.uncertainty,
            "percentile": decision.assessment.percentile,
            "level": decision.assessment.level,
            "epistemic": answer.uncertainty,
            "aleatoric": {
                "value": decision.assessment.displacement,
                "percentile": decision.assessment.displacement_percentile,
            },
            "method": "laplace_kronecker_fixed_euclidean",
        }
        ood = served["query"]["ood"]
        assert ood["p_value"] == decision.assessment.outlier_p_value
        assert ood["alpha"] == answer.alpha == 0.05
        assert ood["method"]
        assert served["results"] == [
            {
                **match.model_dump(),
                "thumbnail_url": f"/v1/galleries/digits/items/{match.id}/thumbnail",
                "preview_url": None,
            }
            for match in answer.matches
        ]
        assert [result["match_probability"] for result in served["results"]] == list(
            decision.match_probabilities
        )
        assert served["bundle"] == {
            "id": bundle.manifest.id,
            "calibration": {
                "status": "valid",
                "n_queries": calibration.n_queries,
                "reason": None,
                "reason_code": None,
            },
        }
        assert decision.result_set is not None
        assert served["result_set"] == {
            "items": [{"id": item.id, "label": item.label} for item in answer.result_set],
            "coverage": 0.95,
            "promised": True,
            "promised_for": ["many"],
            "reason": None,
            "reason_code": None,
        }
        assert served["reason"] == decision.reason
        assert "2 labels of absent calibration queries are too few" in served["reason"]
        assert served["guaranteed"] is False
        assert "without a guarantee" in search_in_words(schemas.SearchAnswer.model_validate(served))
        assert served["no_match_probability"] == decision.no_match_probability
        assert served["absent"] == {
            "share": calibration.default_share,
            "origin": "bundle",
            "basis": "absent_labels",
            "adopted_at": None,
        }

    def test_all_probabilities_of_a_query_sum_to_one(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        for sample in bundle.manifest.samples:
            image = (bundle.directory / sample.file).read_bytes()
            answer = search(client, image, limit=100, group_by="label").json()
            of_label = {one["label"]: one["match_probability"] for one in answer["results"]}
            assert set(of_label) <= set(bundle.retriever.gallery.labels)
            assert sum(of_label.values()) + answer["no_match_probability"] == pytest.approx(1)

    def test_a_result_set_is_as_large_as_its_promise(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        sizes = {}
        for coverage in (0.8, 0.99, 0.999):
            sets = [
                search(client, (bundle.directory / s.file).read_bytes(), coverage=coverage).json()[
                    "result_set"
                ]
                for s in bundle.manifest.samples
            ]
            sizes[coverage] = sum(len(one["items"]) for one in sets)
            labels = [[item["label"] for item in one["items"]] for one in sets]
            assert all(len(set(of_set)) == len(of_set) >= 1 for of_set in labels)
            assert {one["promised"] for one in sets} == {coverage < 0.999}
        assert sizes[0.8] <= sizes[0.99] <= sizes[0.999]
        assert "needs 2302 independent calibration queries" in sets[0]["reason"]
        assert search(client, picture("PNG"), coverage=1).status_code == 422

    def test_it_may_be_asked_to_show_nothing_it_is_not_sure_of(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        verdicts = set()
        for sample in bundle.manifest.samples:
            image = (bundle.directory / sample.file).read_bytes()
            answer = search(client, image, on_uncertain="refuse").json()
            verdicts.add(answer["verdict"])
            assert len(answer["results"]) == (10 if answer["verdict"] == "match" else 0)
            assert (answer["result_set"] is None) == (answer["verdict"] != "match")
            assert answer["query"]["ood"]["p_value"] > 0
            assert len(search(client, image).json()["results"]) == 10
        assert {"match", "out_of_distribution"} <= verdicts
        assert search(client, image, on_uncertain="panic").status_code == 422

    @pytest.mark.parametrize("limit", [1, 10, 100])
    def test_it_lists_as_many_as_are_wanted(
        self, client: TestClient, digit: bytes, limit: int
    ) -> None:
        results = search(client, digit, limit=limit).json()["results"]
        assert [result["rank"] for result in results] == list(range(1, limit + 1))
        order = [(-result["similarity"], result["id"]) for result in results]
        assert order == sorted(order)
        assert len({result["id"] for result in results}) == limit
        for result in results:
            assert 0 <= result["match_probability"] <= 1
            assert 0 <= result["rank_confidence"] <= 1
        assert results[0]["rank_confidence"] > 0.5

    def test_ten_are_wanted_if_nothing_is_said(self, client: TestClient, digit: bytes) -> None:
        assert len(search(client, digit).json()["results"]) == 10

    def test_the_alpha_of_the_request_draws_the_line(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        images = [
            (bundle.directory / sample.file).read_bytes() for sample in bundle.manifest.samples
        ]
        p_values = [search(client, image).json()["query"]["ood"]["p_value"] for image in images]
        image, p_value = max(
            (pair for pair in zip(images, p_values, strict=True) if pair[1] < 0.9),
            key=lambda pair: pair[1],
        )
        for alpha, flag in ((0.99 * p_value, False), (p_value, True), (1.01 * p_value, True)):
            answer = search(client, image, alpha=alpha).json()
            assert answer["query"]["ood"]["alpha"] == alpha
            assert answer["query"]["ood"]["flag"] is flag
            assert (answer["verdict"] == "out_of_distribution") is flag

    def test_an_alpha_below_the_smallest_p_value_is_refused_a_flag(
        self, client: TestClient, bundle: Bundle, stranger: bytes
    ) -> None:
        calibration = bundle.retriever.calibration
        assert calibration is not None
        least = 1 / (len(calibration.outlier_scores) + 1)
        too_small = search(client, stranger, alpha=0.99 * least).json()
        ood = too_small["query"]["ood"]
        assert ood["flag"] is None
        assert f"With {len(calibration.outlier_scores)} calibration queries" in ood["reason"]
        assert (
            f"a flag needs {math.ceil(1 / (0.99 * least)) - 1} calibration queries" in ood["reason"]
        )
        assert ood["reason_code"]["code"] == "alpha_too_small"
        assert ood["reason_code"]["parameters"]["n_queries"] == len(calibration.outlier_scores)
        assert too_small["verdict"] != "out_of_distribution"
        assessed = assess(client, stranger, alpha=0.99 * least).json()
        assert assessed["query"]["ood"] == ood
        tiny = search(client, stranger, alpha=5e-324).json()["query"]["ood"]
        assert "a flag needs more than a billion calibration queries" in tiny["reason"]
        enough = search(client, stranger, alpha=least).json()["query"]["ood"]
        assert enough["flag"] is (enough["p_value"] <= least)
        assert enough["reason"] is enough["reason_code"] is None

    def test_an_image_from_another_world_is_flagged(
        self, client: TestClient, stranger: bytes
    ) -> None:
        answer = search(client, stranger).json()
        assert answer["verdict"] == "out_of_distribution"
        assert answer["query"]["ood"]["flag"] is True
        assert answer["query"]["ood"]["p_value"] <= 0.05

    def test_it_describes_the_image_that_came(self, client: TestClient) -> None:
        buffer = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6  # lies on its side
        Image.open(io.BytesIO(picture("PNG", 30, 20))).save(buffer, "JPEG", exif=exif)
        for cache in ("miss", "hit"):
            answer = search(client, buffer.getvalue()).json()
            assert answer["cache"] == cache
            assert answer["query"]["image"] == {
                "format": "JPEG",
                "width": 20,
                "height": 30,
                "warnings": ["The orientation stored in the file was applied."],
            }

    def test_it_says_where_the_time_went(self, client: TestClient, digit: bytes) -> None:
        later = {"cache", "search", "decide", "items", "total"}
        for stages in (later | {"decode", "encode"}, later):
            timing = search(client, digit).json()["timing_ms"]
            assert set(timing) == stages
            assert min(timing.values()) >= 0
            parts = sum(spent for stage, spent in timing.items() if stage != "total")
            assert parts <= timing["total"] + 0.001 * len(stages)  # each is rounded

    def test_the_cache_keeps_distributions_not_answers(
        self, client: TestClient, digit: bytes
    ) -> None:
        first = search(client, digit, limit=5).json()
        other = search(client, digit, limit=3, alpha=0.5).json()
        again = search(client, digit, limit=5).json()
        assert [first["cache"], other["cache"], again["cache"]] == ["miss", "hit", "hit"]
        assert len(other["results"]) == 3
        assert other["query"]["ood"]["alpha"] == 0.5
        assert again["results"] == first["results"]
        assert again["query"] == first["query"]


class TestWithoutCalibration:
    def test_no_probability_is_made_up(
        self, start: StartClient, bare_bundle: Bundle, digit: bytes
    ) -> None:
        for answer in (search(start(bare_bundle), digit).json() for _ in range(2)):
            assert answer["verdict"] == "not_calibrated"
            assert answer["bundle"]["calibration"] == {
                "status": "missing",
                "n_queries": 0,
                "reason": None,
                "reason_code": None,
            }
            assert answer["result_set"] is None
            uncertainty = answer["query"]["uncertainty"]
            assert uncertainty["percentile"] is uncertainty["level"] is None
            assert 0 < uncertainty["value"] < 1
            assert answer["no_match_probability"] is answer["absent"] is None
            ood = answer["query"]["ood"]
            assert ood["flag"] is ood["p_value"] is ood["reason"] is None
            assert {result["match_probability"] for result in answer["results"]} == {None}

    def test_the_ranking_is_that_of_the_calibrated_gallery(
        self, start: StartClient, bare_bundle: Bundle, digit: bytes
    ) -> None:
        ranked = [
            [(result["id"], result["similarity"], result["rank_stability"]) for result in results]
            for results in (
                search(client, digit).json()["results"] for client in (start(), start(bare_bundle))
            )
        ]
        assert ranked[0] == ranked[1]

    def test_the_gallery_says_so(self, start: StartClient, bare_bundle: Bundle) -> None:
        gallery = start(bare_bundle).get("/v1/galleries/digits").json()
        assert gallery["bundle"]["calibration"]["status"] == "missing"
        assert gallery["calibration"] is gallery["metrics"] is None
        assert gallery["outcome"]["recall_at_1"] is gallery["outcome"]["basis"] is None
        [line] = gallery["outcome"]["lines"]
        assert (line["code"], line["severity"]) == ("not_calibrated", "warning")


class TestLabels:
    def test_they_come_page_by_page(self, client: TestClient, bundle: Bundle) -> None:
        path, found = "/v1/galleries/digits/labels", []
        after: dict[str, str | None] = {}
        for n_left in (8, 5, 2):
            page = client.get(path, params={"limit": 3, **after}).json()
            assert (page["n_labels"], page["bundle_id"]) == (8, bundle.manifest.id)
            assert len(page["labels"]) == min(3, n_left)
            found += page["labels"]
            after = {"after": page["next_after"]}
        assert after == {"after": None}
        assert found == list("01245679")

    def test_a_label_that_has_gone_is_still_a_place(self, client: TestClient) -> None:
        page = client.get("/v1/galleries/digits/labels", params={"after": "3"}).json()
        assert page["labels"] == list("45679")
        assert client.get("/v1/galleries/digits/labels?limit=0").status_code == 422

    def test_a_gallery_of_very_many_is_described_by_a_dozen(
        self, start: StartClient, bundle: Bundle
    ) -> None:
        class Catalogue:
            labels = held_labels = tuple(f"{n:05d}" for n in reversed(range(100_000)))

            def __getattr__(self, name: str) -> object:
                return getattr(bundle.retriever.gallery, name)

        retriever = bundle.retriever.with_gallery(cast("Gallery", Catalogue()))
        client = start(replace(bundle, retriever=retriever, root=None, live=None))
        answer = client.get("/v1/galleries/digits")
        assert answer.json()["n_labels"] == 100_000
        assert answer.json()["labels"] == [f"{number:05d}" for number in range(12)]
        assert len(answer.content) < 20_000
        page = client.get("/v1/galleries/digits/labels?after=00009&limit=2").json()
        assert (page["labels"], page["next_after"]) == (["00010", "00011"], "00011")


class TestAGallery:
    def test_it_describes_itself(self, client: TestClient, bundle: Bundle) -> None:
        gallery = client.get("/v1/galleries/digits").json()
        retriever = bundle.retriever
        assert gallery["name"] == "digits"
        assert gallery["description"] == bundle.manifest.gallery["description"]
        assert gallery["n_items"] == retriever.gallery.n_items
        assert (gallery["n_labels"], gallery["labels"]) == (8, list("01245679"))
        assert gallery["encoder"] == {
            "fingerprint": retriever.encoder.fingerprint,
            "provider": "CPUExecutionProvider",
            "dim": retriever.encoder.dim,
            "posterior": retriever.encoder.metadata.posterior,
        }
        evaluation = json.loads((bundle.directory / "evaluation.json").read_text("utf-8"))
        assert gallery["metrics"] == evaluation
        outcome = outcome_of(retriever.calibration, evaluation).model_dump()
        assert gallery["outcome"] == json.loads(json.dumps(outcome))
        assert gallery["outcome"]["basis"] == "evaluation"
        assert gallery["outcome"]["lines"][0]["sentence"].startswith("The first result is right")
        assert gallery["calibration"]["n_queries"] > 0

    def test_its_samples_can_be_fetched(self, client: TestClient, bundle: Bundle) -> None:
        samples = client.get("/v1/galleries/digits").json()["samples"]
        assert {sample["belongs"] for sample in samples} == {True, False}
        assert len(samples) == len(bundle.manifest.samples)
        for sample, kept in zip(samples, bundle.manifest.samples, strict=True):
            assert (sample["id"], sample["caption"]) == (kept.id, kept.caption)
            response = client.get(sample["image_url"])
            assert response.content == (bundle.directory / kept.file).read_bytes()
            assert response.headers["content-type"] == "image/png"
            assert "max-age=" in response.headers["cache-control"]
            small = client.get(sample["thumbnail_url"])
            assert max(Image.open(io.BytesIO(small.content)).size) <= ICON_SIDE
            assert "max-age=" in small.headers["cache-control"]

    def test_its_items_can_be_fetched(self, client: TestClient, digit: bytes) -> None:
        result = search(client, digit).json()["results"][0]
        item = client.get(f"/v1/galleries/digits/items/{result['id']}").json()
        shared = ("id", "label", "metadata", "thumbnail_url", "preview_url")
        assert item == {name: result[name] for name in shared}
        response = client.get(result["thumbnail_url"])
        assert response.headers["content-type"] == "image/png"
        assert "max-age=" in response.headers["cache-control"]
        assert Image.open(io.BytesIO(response.content)).size == (8, 8)

    def test_galleries_are_listed_by_name(
        self, start: StartClient, bundle: Bundle, odd_bundle: Bundle, digit: bytes
    ) -> None:
        client, ids = start(odd_bundle, bundle), odd_ids(odd_bundle)
        assert client.get("/v1/galleries").json() == {
            "galleries": [
                {
                    "name": "digits",
                    "title": "",
                    "n_items": bundle.retriever.gallery.n_items,
                    "bundle_id": bundle.manifest.id,
                },
                {
                    "name": "odd",
                    "title": "",
                    "n_items": len(ids),
                    "bundle_id": odd_bundle.manifest.id,
                },
            ]
        }
        answers = {name: search(client, digit, name).json() for name in ("digits", "odd")}
        for name, answer in answers.items():
            assert answer["gallery"] == name
            assert answer["cache"] == "miss"
        assert {result["id"] for result in answers["odd"]["results"]} == set(ids)


def odd_ids(odd_bundle: Bundle) -> list[str]:
    gallery = odd_bundle.retriever.gallery
    return [item.id for item in gallery.items(np.arange(gallery.n_items))]


def test_any_id_makes_an_address_that_works(
    start: StartClient, odd_bundle: Bundle, digit: bytes
) -> None:
    client = start(odd_bundle)
    results = search(client, digit, "odd").json()["results"]
    assert sorted(result["id"] for result in results) == sorted(odd_ids(odd_bundle))
    for result in results:
        thumbnail = client.get(result["thumbnail_url"])
        assert thumbnail.status_code == 200, result["id"]
        assert thumbnail.content == result["id"].encode()
        item = client.get(result["thumbnail_url"].removesuffix("/thumbnail")).json()
        assert item["id"] == item["metadata"]["named"] == result["id"]


class TestHealth:
    def test_it_lives(self, client: TestClient) -> None:
        assert client.get("/livez").json() == {"status": "live"}

    def test_it_is_ready_with_the_provider_that_runs(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        ready = client.get("/readyz").json()
        [gallery] = ready["galleries"]
        assert gallery.pop("canary_ms") > 0
        assert 0 <= gallery.pop("canary_age_s") < 60
        assert gallery.pop("placement") is None  # there was no choice of providers
        assert gallery == {
            "name": "digits",
            "bundle_id": bundle.manifest.id,
            "encoder_fingerprint": bundle.retriever.encoder.fingerprint,
            "provider": "CPUExecutionProvider",
            "batch_size": gallery["batch_size"],
        }
        assert 1 <= gallery["batch_size"] <= Settings().max_batch
        assert (ready["status"], ready["cache"]) == ("ready", "process")

    def test_an_encoder_that_fails_is_not_ready_for_long(
        self, start: StartClient, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = start(canary_period_s=0.05)

        def fail(images: object, at_once: object) -> None:
            raise RuntimeError("the device is lost")

        monkeypatch.setattr(bundle.retriever.encoder, "encode", fail)
        wait_until(lambda: client.get("/readyz").status_code != 200)
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
        assert int(answer.headers["Retry-After"]) > 0
        assert client.get("/livez").status_code == 200


class TestAnAssessment:
    def test_it_says_of_the_query_what_the_search_says(
        self, client: TestClient, digit: bytes, stranger: bytes
    ) -> None:
        for image, alpha in ((digit, 0.05), (stranger, 0.2)):
            assessed = assess(client, image, alpha=alpha).json()
            searched = search(client, image, alpha=alpha).json()
            assert assessed["query"] == searched["query"]
            assert assessed["bundle"] == searched["bundle"]
            assert searched["cache"] == "hit"
        assert searched["query"]["ood"]["flag"] is True

    def test_an_ordinary_query_gets_no_hint_and_a_poor_one_a_reason(
        self, client: TestClient, digit: bytes
    ) -> None:
        assert assess(client, digit).json()["quality"]["hints"] == []
        black = io.BytesIO()
        Image.new("RGB", (90, 4), (3, 3, 3)).save(black, "PNG")
        quality = assess(client, black.getvalue()).json()["quality"]
        hints = {hint["code"]: hint for hint in quality["hints"]}
        assert set(hints) == {"too_small", "too_dark", "flat", "blurred", "extreme_aspect"}
        assert hints["too_small"]["value"] == quality["measures"]["short_side"] == 4
        assert all(hint["advice"] for hint in hints.values())

    def test_without_calibration_only_the_picture_is_judged(
        self, start: StartClient, bare_bundle: Bundle
    ) -> None:
        answer = assess(start(bare_bundle), picture("PNG", 100, 90)).json()
        assert answer["query"]["ood"]["p_value"] is answer["query"]["ood"]["flag"] is None
        assert answer["query"]["uncertainty"]["percentile"] is None
        assert answer["quality"]["hints"] == []
