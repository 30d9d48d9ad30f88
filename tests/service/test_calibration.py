"""What the service says of a gallery's calibration, and when it calls it stale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from end_to_end.questions import picture, search
from scipy.stats import binom
from starlette.testclient import TestClient

from model_store.retriever import Bundle, Retriever

StartClient = Callable[..., TestClient]


class TestTheCalibration:
    def test_it_shows_what_the_bundle_was_calibrated_with(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        report = client.get("/v1/galleries/digits/calibration").json()
        calibration = bundle.retriever.calibration
        assert calibration is not None
        assert report["status"] == "valid"
        assert report["match_threshold"] == calibration.match_threshold
        assert sum(one["n"] for one in report["reliability"]) == report["n_queries"]
        gaps = [one["n"] * abs(one["share"] - one["probability"]) for one in report["reliability"]]
        assert report["top1_ece"] == pytest.approx(sum(gaps) / report["n_queries"])
        coverages = [point["coverage"] for point in report["risk_coverage"]]
        assert coverages == sorted(coverages)
        assert all(p["error"] <= p["error_bound"] for p in report["risk_coverage"])
        assert report["coverage"] == calibration.coverage
        sizes = [one["mean_size"] for one in report["result_sets"]]
        assert sizes == sorted(sizes)
        n = report["n_queries"]
        for one in report["result_sets"]:
            assert one["covered"] * n >= binom.ppf(1e-4, n, one["coverage"])
        assert set(report["outlier_auroc"]) == {"near", "far", "corrupted"}

    def test_an_owner_finds_the_threshold_for_an_error(self, client: TestClient) -> None:
        path = "/v1/galleries/digits/calibration/operating-points"
        strict, loose = (
            client.get(path, params={"max_error": error}).json()["point"] for error in (0.01, 0.2)
        )
        assert strict["error"] <= 0.01
        assert strict["threshold"] >= loose["threshold"] >= 0.5
        assert strict["coverage"] <= loose["coverage"]
        for wrong in ({}, {"max_error": 1}, {"max_error": "few"}):
            refused = client.get(path, params=wrong)
            assert refused.status_code == 422
            assert refused.headers["content-type"] == "application/problem+json"

    def test_without_one_nothing_is_invented(self, start: StartClient, bare_bundle: Bundle) -> None:
        bare = start(bare_bundle)
        report = bare.get("/v1/galleries/digits/calibration").json()
        assert report["status"] == "missing"
        assert report["match_threshold"] is report["top1_ece"] is None
        assert report["reliability"] == report["risk_coverage"] == report["result_sets"] == []
        path = "/v1/galleries/digits/calibration/operating-points?max_error=0.1"
        assert bare.get(path).json() == {"max_error": 0.1, "point": None}

    def test_of_another_search_it_is_stale_and_says_what_to_do(
        self, start: StartClient, bundle: Bundle, digit: bytes
    ) -> None:
        fitted = bundle.retriever.calibration
        assert fitted is not None
        other = replace(fitted, search={**fitted.search, "index": "IndexHNSWFlat"})
        retriever = Retriever(bundle.retriever.encoder, bundle.retriever.gallery, other)
        client = start(replace(bundle, retriever=retriever))
        for answer in (search(client, digit), client.get("/v1/galleries/digits")):
            state = answer.json()["bundle"]["calibration"]
            assert state["status"] == "stale"
            assert "IndexHNSWFlat" in state["reason"]
            assert "vouch-build calibrate" in state["reason"]
        assert client.get("/v1/galleries/digits/calibration").json()["status"] == "stale"

    def test_queries_unlike_the_calibration_s_make_it_stale(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        def state() -> dict[str, Any]:
            found: dict[str, Any] = client.get("/v1/galleries/digits").json()
            return found["bundle"]["calibration"]

        (sample, *_) = [s for s in bundle.manifest.samples if s.belongs]
        for _ in range(40):  # one and the same picture is one query
            search(client, (bundle.directory / sample.file).read_bytes())
        assert state()["status"] == "valid"
        assert 'vouch_calibration_stale{gallery="digits"} 0.0' in client.get("/metrics").text
        for width in range(20, 50):
            answer = search(client, picture("PNG", width, 30)).json()
        assert answer["bundle"]["calibration"] == state()
        assert state()["status"] == "stale"
        assert "Recent queries" in state()["reason"]
        assert answer["results"][0]["match_probability"] is not None  # shown, and no promise
        assert answer["result_set"]["promised"] is False
        assert answer["result_set"]["reason"] == state()["reason"]
        assert 'vouch_calibration_stale{gallery="digits"} 1.0' in client.get("/metrics").text
