"""What the service says of a gallery's calibration, and when it calls it stale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.retriever import Retriever
from tests.end_to_end.questions import search

StartClient = Callable[..., TestClient]


def of_calibration(bundle: Bundle, **changes: Any) -> Bundle:
    """The digits with another calibration."""
    fitted = bundle.retriever.calibration
    assert fitted is not None
    retriever = Retriever(
        bundle.retriever.encoder, bundle.retriever.gallery, replace(fitted, **changes)
    )
    return replace(bundle, retriever=retriever)


class TestTheCalibration:
    def test_it_counts_the_items_among_its_queries(
        self, start: StartClient, bundle: Bundle
    ) -> None:
        """As `GET …/bundles` does."""
        fitted = bundle.retriever.calibration
        assert fitted is not None
        client = start(of_calibration(bundle, n_queries=fitted.n_queries - 100))
        report = client.get("/v1/galleries/digits/calibration").json()
        assert report["n_queries"] == int((~fitted.evidence.absent).sum())

    def test_it_shows_what_the_bundle_was_calibrated_with(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        report = client.get("/v1/galleries/digits/calibration").json()
        calibration = bundle.retriever.calibration
        assert calibration is not None
        assert report["status"] == "valid"
        for name in ("max_error", "max_false_match_rate", "delta", "alpha"):
            assert report[name] == getattr(calibration, name)
        assert report["queries"] == "held_out_images"
        assert report["sources"] == []
        assert report["absent"] == {
            "assumed": calibration.assumed_absent,
            "expected": calibration.expected_absent,
            "adopted": None,
            "adopted_at": None,
            "estimated": None,
            "interval": None,
            "n_served": 0,
            "used": calibration.default_share,
            "is_hint": False,
            "basis": "absent_labels",
            "warning": None,
        }
        assert report["drift"] == {
            "reason": None,
            "reason_code": None,
            "n_served": 0,
            "log_capital": 0.0,
            "drifted": False,
            "n_streams": 0,
            "n_alarmed": 0,
        }
        weights = [one["weight"] for one in report["reliability"]]
        assert sum(weights) == pytest.approx(1)
        gaps = [abs(one["share"] - one["probability"]) for one in report["reliability"]]
        assert report["top1_ece"] == pytest.approx(np.dot(weights, gaps))
        coverages = [point["coverage"] for point in report["risk_coverage"]]
        assert coverages == sorted(coverages)
        assert all(p["error"] <= p["error_bound"] for p in report["risk_coverage"])
        short = client.get("/v1/galleries/digits/calibration?curve=false").json()
        assert short == {**report, "risk_coverage": []}
        assert report["coverage"] == calibration.coverage
        sizes = [one["mean_size"] for one in report["result_sets"]]
        assert sizes == sorted(sizes)
        n = report["n_queries"]
        for one in report["result_sets"]:
            assert one["covered"] * n >= binom.ppf(1e-4, n, one["coverage"])
        assert set(report["outlier_auroc"]) == {"near"}

    def test_it_shows_what_is_promised_of_matches(self, client: TestClient, bundle: Bundle) -> None:
        report = client.get("/v1/galleries/digits/calibration").json()
        calibration = bundle.retriever.calibration
        assert calibration is not None
        [promise] = report["matches"]  # no label of the digits has few images
        assert (promise["size_class"], promise["n_labels"]) == ("many", 8)
        assert "2 labels of absent calibration queries are too few" in promise["reason"]
        assert promise["threshold"] == promise["point"]["threshold"] >= 0.5
        assert report["point"] == promise["point"]
        assert report["point"]["error"] <= report["max_error"]
        assert report["point"]["error"] <= report["point"]["error_bound"]
        assert report["point"]["false_match_rate"] <= report["point"]["false_match_bound"]

    def test_where_too_little_is_known_it_says_how_many_queries_would_do(
        self, start: StartClient, bundle: Bundle
    ) -> None:
        strict = of_calibration(bundle, max_error=0.001)
        client = start(strict)
        report = client.get("/v1/galleries/digits/calibration").json()
        assert report["point"] is None
        [promise] = report["matches"]
        assert promise["threshold"] is promise["point"] is None
        assert "An error of at most 0.001 among matches cannot be promised" in promise["reason"]
        likely = next(
            one
            for one in (
                search(client, (strict.directory / sample.file).read_bytes()).json()
                for sample in strict.manifest.samples
            )
            if one["results"][0]["match_probability"] > 0.9 and not one["query"]["ood"]["flag"]
        )
        assert (likely["verdict"], likely["reason"]) == ("ambiguous", promise["reason"])

    def test_an_owner_finds_the_threshold_for_an_error(self, client: TestClient) -> None:
        path = "/v1/galleries/digits/calibration/operating-points"
        strict, loose = (
            client.get(path, params={"max_error": error}).json()["point"] for error in (0.1, 0.3)
        )
        for tiny in (0.001, 5e-324):
            never = client.get(path, params={"max_error": tiny}).json()
            assert never["point"] is None
            assert f"An error of at most {tiny:g} among matches cannot" in never["reason"]
            assert never["reason_code"]["code"] == "error_not_bounded"
        assert strict["error"] <= strict["error_bound"] <= 0.1
        assert loose["error_bound"] <= 0.3
        assert strict["threshold"] >= loose["threshold"] >= 0.5
        assert strict["coverage"] <= loose["coverage"]
        for wrong in ({}, {"max_error": 1}, {"max_error": "few"}):
            refused = client.get(path, params=wrong)
            assert refused.status_code == 422
            assert refused.headers["content-type"] == "application/problem+json"

    def test_the_threshold_depends_on_how_often_nothing_is_to_be_found(
        self, client: TestClient
    ) -> None:
        path = "/v1/galleries/digits/calibration/operating-points"
        few, many = (
            client.get(path, params={"max_error": 0.1, "expected_absent": share}).json()["point"]
            for share in (0.01, 0.05)
        )
        assert few["coverage"] > many["coverage"]
        refused = client.get(path, params={"max_error": 0.1, "source": "moon"})
        assert (refused.status_code, refused.json()["code"]) == (422, "unknown_source")

    def test_without_one_nothing_is_invented(self, start: StartClient, bare_bundle: Bundle) -> None:
        bare = start(bare_bundle)
        report = bare.get("/v1/galleries/digits/calibration").json()
        assert report["status"] == "missing"
        assert report["point"] is report["absent"] is report["top1_ece"] is None
        assert report["max_error"] is report["delta"] is report["max_false_match_rate"] is None
        assert report["matches"] == report["sources"] == []
        assert report["reliability"] == report["risk_coverage"] == report["result_sets"] == []
        path = "/v1/galleries/digits/calibration/operating-points?max_error=0.1"
        assert bare.get(path).json() == {
            "max_error": 0.1,
            "point": None,
            "reason": None,
            "reason_code": None,
        }

    def test_of_another_search_it_is_stale_and_says_what_to_do(
        self, start: StartClient, bundle: Bundle
    ) -> None:
        matching = (bundle.directory / bundle.manifest.samples[0].file).read_bytes()
        assert search(start(), matching).json()["verdict"] == "match"
        fitted = bundle.retriever.calibration
        assert fitted is not None
        other = of_calibration(bundle, search={**fitted.search, "index": "IndexHNSWFlat"})
        client = start(other)
        for answer in (search(client, matching), client.get("/v1/galleries/digits")):
            state = answer.json()["bundle"]["calibration"]
            assert state["status"] == "stale"
            assert "IndexHNSWFlat" in state["reason"]
            assert "vouch-build calibrate" in state["reason"]
        assert client.get("/v1/galleries/digits/calibration").json()["status"] == "stale"
        answer = search(client, matching).json()
        assert answer["verdict"] == "ambiguous", "what was a match is withheld"
        assert answer["reason"] == answer["bundle"]["calibration"]["reason"]
        assert answer["results"][0]["match_probability"] is not None
        refused = search(client, matching, on_uncertain="refuse").json()
        assert (refused["results"], refused["result_set"]) == ([], None)
