"""The share of absent queries that is used, its origin, and its estimate from served queries."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from index_builder.datasets.small_images import digits
from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import OperatorSettings
from model_store.decision import Absence, Assessment, Calibration, Decision, Verdict
from model_store.decision.calibration import DEFAULT_ABSENT
from model_store.retriever import Retriever
from model_store.watch_states import ShareStates
from service.app import create_app
from service.serving.watch import ESTIMATED_EVERY, AbsentShareWatch
from service.settings import Settings
from tests.end_to_end.keys import KeysFile, bearer
from tests.end_to_end.questions import search, search_batch, search_json, search_raw
from tests.support.image_files import encoded
from tests.support.local_client import LocalClient
from tests.support.narrowing import not_none

StartClient = Callable[..., TestClient]

N_ENOUGH = 2000
"""Served queries that estimate a share to about ± 0.03."""


def watch_of(
    bundle: Bundle, expected: float | None = None, absence: Absence = "absent_labels"
) -> AbsentShareWatch:
    """Return a watch of the digits' calibration, with what is known of absent queries replaced.

    Each absent query has a label of its own.
    """
    calibration = calibration_of(bundle)
    of = calibration.evidence
    clusters = np.where(of.absent, of.clusters.max() + 1 + np.arange(len(of)), of.clusters)
    evidence = replace(of, absence=absence, clusters=clusters)
    return AbsentShareWatch(replace(calibration, expected_absent=expected, evidence=evidence))


def calibration_of(bundle: Bundle) -> Calibration:
    calibration = bundle.retriever.calibration
    assert calibration is not None
    return calibration


def decision(no_match: float | None, verdict: Verdict = "ambiguous") -> Decision:
    return Decision(verdict, Assessment(), assumed_no_match=no_match)


def serve(watch: AbsentShareWatch, share: float, n: int = N_ENOUGH) -> None:
    """Let the watch see queries like those of the calibration, of which a ``share`` is absent.

    Those with the larger P(no match) of the absent ones are flagged out of distribution.
    """
    generator, of = np.random.default_rng(0), watch._calibration.evidence
    absent, no_match = generator.uniform(size=n) < share, of.no_match_probabilities
    values = np.where(
        absent, generator.choice(no_match[of.absent], n), generator.choice(no_match[of.counted], n)
    )
    flagged = absent & (values > np.median(no_match[of.absent]))
    for value, is_flagged in zip(values.tolist(), flagged.tolist(), strict=True):
        observe(watch, decision(value, "out_of_distribution" if is_flagged else "ambiguous"))


def observe(watch: AbsentShareWatch, decided: Decision) -> None:
    watch.observe(decided, -math.inf)


class TestWhichShareIsUsed:
    def test_request_before_key_before_operator_before_configuration(self, bundle: Bundle) -> None:
        watch = watch_of(bundle, expected=0.2)
        assert watch.choose(None, None) == (0.2, "bundle")
        watch.operator = OperatorSettings(0.3, "2026-01-02T03:04:05+00:00")
        assert watch.choose(None, None) == (0.3, "adopted")
        assert watch.choose(None, 0.05) == (0.05, "key")
        assert watch.choose(0.9, 0.05) == (0.9, "request")
        assert (watch.state.adopted, watch.state.expected, watch.state.used) == (0.3, 0.2, 0.3)

    @pytest.mark.parametrize("expected", [None, 0.2])
    def test_the_estimate_changes_no_share(self, bundle: Bundle, expected: float | None) -> None:
        watch = watch_of(bundle, expected)
        before = watch.choose(None, None)
        serve(watch, 0.7)
        assert watch.state.estimated == pytest.approx(0.7, abs=0.05)
        assert watch.choose(None, None) == before
        assert before == (DEFAULT_ABSENT if expected is None else expected, "bundle")

    def test_there_is_no_estimate_until_enough_queries_were_served(self, bundle: Bundle) -> None:
        watch = watch_of(bundle)
        for n_served in (
            0,
            ESTIMATED_EVERY,
            2 * ESTIMATED_EVERY,
        ):  # fewer than an estimate is made from
            assert watch.state.n_served == n_served
            assert watch.state.estimated is None
            assert watch.state.interval is None
            assert watch.state.warning is None
            serve(watch, 0.7, ESTIMATED_EVERY)
        assert watch.state.estimated is not None

    @pytest.mark.parametrize(
        ("absence", "is_hint"),
        [
            ("absent_labels", False),
            ("hidden_labels", False),
            ("hidden_trained_labels", False),
            ("near_misses_of_views", True),
        ],
    )
    def test_the_estimate_is_a_hint_where_queries_were_views(
        self, bundle: Bundle, absence: Absence, *, is_hint: bool
    ) -> None:
        state = watch_of(bundle, absence=absence).state
        assert (state.is_hint, state.basis) == (is_hint, absence)

    def test_an_interval_without_the_share_in_use_is_a_warning(
        self, bundle: Bundle, caplog: pytest.LogCaptureFixture
    ) -> None:
        watch = watch_of(bundle, expected=0.2)
        serve(watch, 0.2)
        assert watch.state.warning is None
        serve(watch, 0.9, 4 * N_ENOUGH)
        assert "guarantees assume 0.2" in str(watch.state.warning)
        assert "absent-share" in str(watch.state.warning)
        logged = [one for one in caplog.records if one.message == "another share of absent queries"]
        assert len(logged) == 1
        assert not_none(watch.state.interval)[0] > 0.2
        adopted = round(not_none(watch.state.estimated), 3)
        watch.operator = OperatorSettings(adopted, "2026-01-02T03:04:05+00:00")
        assert watch.state.warning is None

    def test_fewer_absent_queries_than_stated_are_not_logged(
        self, bundle: Bundle, caplog: pytest.LogCaptureFixture
    ) -> None:
        watch = watch_of(bundle, expected=0.6)
        serve(watch, 0.2)
        assert watch.state.warning is not None
        assert not caplog.records


class TestTheEstimate:
    @pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
    def test_it_finds_the_share_of_a_stream(self, bundle: Bundle, share: float) -> None:
        watch = watch_of(bundle)
        serve(watch, share)
        state = watch.state
        assert state.estimated is not None
        assert state.interval is not None
        assert state.interval[0] <= state.estimated <= state.interval[1]
        assert state.estimated == pytest.approx(share, abs=0.05)
        assert state.n_served == N_ENOUGH

    def test_queries_of_another_kind_are_not_counted(self, bundle: Bundle) -> None:
        watch = watch_of(bundle)
        scores = watch._calibration.outlier_scores, watch._calibration.absent_outlier_scores
        largest = max(float(not_none(one).max()) for one in scores)
        watch.observe(decision(0.9, "out_of_distribution"), math.nextafter(largest, math.inf))
        observe(watch, decision(None, "not_calibrated"))
        assert watch.state.n_served == 0
        watch.observe(decision(0.9, "out_of_distribution"), largest)
        assert watch.state.n_served == 1

    def test_garbage_hardly_moves_the_estimate(self, bundle: Bundle) -> None:
        watch, other = watch_of(bundle), watch_of(bundle)
        serve(watch, 0.2, N_ENOUGH // 2)
        serve(other, 0.2, N_ENOUGH // 2)
        for _ in range(N_ENOUGH):
            watch.observe(decision(1.0, "out_of_distribution"), 1e6)
        assert watch.state == other.state


class TestKept:
    def test_processes_that_share_a_file_estimate_from_what_both_served(
        self, bundle: Bundle, tmp_path: Path
    ) -> None:
        alone, one, other = (watch_of(bundle) for _ in range(3))
        states = ShareStates(tmp_path / "feedback.db")

        def keep(watch: AbsentShareWatch) -> None:
            watch.restore(states.add("digits-1", watch.unsaved()))

        for place, watch in enumerate((one, other, one, other)):
            generator, n = np.random.default_rng(place), 3 * ESTIMATED_EVERY
            for value in generator.uniform(0.1, 0.9, n):
                observe(watch, decision(float(value)))
                observe(alone, decision(float(value)))
            keep(watch)
        for watch in (one, alone):
            serve(watch, 0.7)
        keep(one)
        keep(other)
        assert other.state == one.state
        assert one.state.estimated == pytest.approx(alone.state.estimated, abs=1e-6)
        assert one.state.n_served == 12 * ESTIMATED_EVERY + N_ENOUGH
        assert states.add("digits-2", []).n_served == 0, "another bundle"
        keep(other)
        assert other.state == one.state, "what was saved is counted once"

    def test_what_cannot_be_saved_is_saved_later(self, bundle: Bundle) -> None:
        watch = watch_of(bundle)
        for value in (0.1, 0.2):
            observe(watch, decision(value))
        failed = watch.unsaved()
        observe(watch, decision(0.3))
        watch.put_back(failed)
        assert watch.unsaved() == [0.1, 0.2, 0.3]
        assert watch.unsaved() == []

    def test_the_estimate_outlives_a_restart(
        self, start: StartClient, bundle: Bundle, absent: list[bytes], tmp_path: Path
    ) -> None:
        owned, settings = of_gallery(bundle, None), Settings(decoders=0, feedback=tmp_path / "f.db")
        with LocalClient(create_app(settings, [owned])) as first:
            for image in absent:
                search(first, image, alpha=0.001)
            before = first.get("/v1/galleries/digits/calibration").json()["absent"]
        assert before["estimated"] > 0.5
        second = start(owned, feedback=tmp_path / "f.db")
        after = second.get("/v1/galleries/digits/calibration").json()["absent"]
        # A query that is nearer to an item than every calibration query is not counted.
        assert after["n_served"] == before["n_served"] >= len(absent) - 3
        assert after["estimated"] == pytest.approx(before["estimated"], abs=0.02)
        assert search(second, absent[0]).json()["absent"]["origin"] == "bundle"


@pytest.fixture(scope="module")
def absent() -> list[bytes]:
    """Images of digits that the gallery does not hold."""
    every = digits()
    return [
        encoded(every.pixels(place), "PNG")
        for place, label in enumerate(every.labels)
        if label in {"3", "8"}
    ][:160]


def first_probability(answer: dict[str, Any]) -> float:
    probability: float = answer["results"][0]["match_probability"]
    return probability


def of_gallery(bundle: Bundle, expected: float | None) -> Bundle:
    """The digits, whose owner expects a share of absent queries, or names none."""
    owned = replace(calibration_of(bundle), expected_absent=expected)
    retriever = Retriever(bundle.retriever.encoder, bundle.retriever.gallery, owned)
    return replace(bundle, retriever=retriever)


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether answers are equal, but for times and what only names the request."""
    names = {"request_id", "timing_ms", "cache", "next_cursor"}
    return {k: v for k, v in one.items() if k not in names} == {
        k: v for k, v in other.items() if k not in names
    }


def gauges(client: TestClient) -> dict[str, float]:
    """The shares that Prometheus is told of."""
    text = client.get("/metrics").text
    found = re.findall(r'^(vouch_absent_share\w*){gallery="digits"} (.+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


class TestServed:
    @pytest.mark.parametrize("door", [search, search_raw, search_json])
    def test_probabilities_follow_the_share_of_the_request(
        self, client: TestClient, digit: bytes, door: Callable[..., Any]
    ) -> None:
        usual = door(client, digit).json()
        seldom, often = (door(client, digit, expected_absent=at).json() for at in (0.001, 0.9))
        assert often["absent"] == {
            "share": 0.9,
            "origin": "request",
            "adopted_at": None,
            "basis": "absent_labels",
        }
        ordered = [first_probability(answer) for answer in (often, usual, seldom)]
        assert ordered == sorted(ordered)
        assert ordered[0] < ordered[1] < ordered[2]
        nothing = [answer["no_match_probability"] for answer in (seldom, usual, often)]
        assert nothing[0] < nothing[1] < nothing[2]
        odds = [p / (1 - p) for p in (usual["no_match_probability"], nothing[2])]
        assumed = usual["absent"]["share"]
        ratio = (0.9 / 0.1) / (assumed / (1 - assumed))
        assert odds[1] / odds[0] == pytest.approx(ratio), "Bayes' theorem"
        for wrong in (0, 1, "often"):
            assert door(client, digit, expected_absent=wrong).status_code == 422

    def test_a_batch_has_one_share(self, client: TestClient, digit: bytes) -> None:
        [item] = search_batch(client, [digit], expected_absent=0.9).json()["items"]
        alone = search(client, digit, expected_absent=0.9).json()
        assert item["answer"]["results"] == alone["results"]

    def test_verdicts_follow_it(self, client: TestClient, bundle: Bundle) -> None:
        image = (bundle.directory / bundle.manifest.samples[0].file).read_bytes()
        verdicts = [
            search(client, image, expected_absent=share).json()["verdict"]
            for share in (0.01, 0.9999)
        ]
        assert verdicts == ["match", "no_match"]

    def test_the_share_of_the_request_comes_before_that_of_the_key(
        self, start: StartClient, bundle: Bundle, keys_file: KeysFile, digit: bytes
    ) -> None:
        client = start(of_gallery(bundle, 0.3), keys=keys_file.path)
        silent = bearer(keys_file.make("read"))
        telling = bearer(keys_file.make("read", expected_absent=0.6))
        cases: list[tuple[dict[str, str], dict[str, Any], tuple[float, str]]] = [
            (silent, {}, (0.3, "bundle")),
            (telling, {}, (0.6, "key")),
            (telling, {"expected_absent": 0.8}, (0.8, "request")),
        ]
        for headers, options, wanted in cases:
            client.headers.update(headers)
            answer = search(client, digit, **options).json()
            assert (answer["absent"]["share"], answer["absent"]["origin"]) == wanted
            said = search(client, digit, expected_absent=wanted[0]).json()
            assert answer["results"] == said["results"]
            [item] = search_batch(client, [digit], **options).json()["items"]
            assert item["answer"]["absent"] == answer["absent"]

    def test_later_pages_keep_share_and_origin(
        self, start: StartClient, bundle: Bundle, keys_file: KeysFile, digit: bytes
    ) -> None:
        client = start(keys=keys_file.path)
        client.headers.update(bearer(keys_file.make("read", expected_absent=0.6)))
        whole = search(client, digit, limit=8).json()
        first = search(client, digit, limit=4).json()
        page = client.get(
            "/v1/galleries/digits/search/next", params={"cursor": first["next_cursor"]}
        ).json()
        assert page["absent"] == first["absent"] == whole["absent"]
        assert [r["match_probability"] for r in first["results"] + page["results"]] == [
            r["match_probability"] for r in whole["results"]
        ]

    def test_after_many_absent_queries_answers_are_as_before(
        self, start: StartClient, bundle: Bundle, digit: bytes, absent: list[bytes]
    ) -> None:
        client = start(of_gallery(bundle, None))
        before = search(client, digit).json()
        assert before["absent"]["origin"] == "bundle"
        assumed = calibration_of(bundle).default_share
        assert gauges(client) == {"vouch_absent_share": assumed}
        for image in absent:  # at so small an alpha none is out of distribution
            search(client, image, alpha=0.001)
        assert same_bits(search(client, digit).json(), before)
        report = client.get("/v1/galleries/digits/calibration").json()["absent"]
        assert report["interval"][0] <= report["estimated"] <= report["interval"][1]
        assert report["interval"][0] > report["used"] == assumed
        assert f"guarantees assume {assumed:g}" in report["warning"]
        assert gauges(client) == {
            "vouch_absent_share": assumed,
            "vouch_absent_share_estimated": report["estimated"],
            "vouch_absent_share_lower": report["interval"][0],
            "vouch_absent_share_upper": report["interval"][1],
        }

    def test_an_adopted_share_moves_all_answers_until_it_is_taken_back(
        self, start: StartClient, bundle: Bundle, digit: bytes, tmp_path: Path
    ) -> None:
        client = start(replace(of_gallery(bundle, None), root=tmp_path))
        path, before = "/v1/galleries/digits/calibration/absent-share", search(client, digit).json()
        adopted = client.post(path, json={"share": 0.6}).json()
        assert (adopted["absent_share"], adopted["alarmed"]) == (0.6, [])
        after = search(client, digit).json()
        assert after["absent"] == {
            "share": 0.6,
            "origin": "adopted",
            "adopted_at": adopted["adopted_at"],
            "basis": "absent_labels",
        }
        asked = search(client, digit, expected_absent=0.6).json()
        assert after["results"] == asked["results"]
        report = client.get("/v1/galleries/digits/calibration").json()["absent"]
        assert (report["used"], report["adopted"], report["expected"]) == (0.6, 0.6, None)
        assert report["adopted_at"] == adopted["adopted_at"]
        back = client.delete(path).json()
        assert (back["absent_share"], back["adopted_at"]) == (before["absent"]["share"], None)
        assert same_bits(search(client, digit).json(), before)
        for wrong in (0, 1, "often", None):
            assert client.post(path, json={"share": wrong}).status_code == 422

    def test_a_picture_that_is_sent_again_is_counted_once(
        self, client: TestClient, digit: bytes
    ) -> None:
        for _ in range(3):
            search(client, digit)
        report = client.get("/v1/galleries/digits/calibration").json()["absent"]
        assert report["n_served"] == 1

    def test_without_calibration_no_share_is_told(
        self, start: StartClient, bare_bundle: Bundle
    ) -> None:
        assert gauges(start(bare_bundle)) == {}


class TestSources:
    def test_promises_are_those_of_the_source(
        self, start: StartClient, bundle: Bundle, digit: bytes
    ) -> None:
        calibration = calibration_of(bundle)
        places = np.arange(len(calibration.evidence)) % 40 == 0
        evidence = replace(
            calibration.evidence,
            sources=places.astype(np.int16),
            source_names=["shop", "phone"],
        )
        of_two = replace(calibration, evidence=evidence)
        retriever = Retriever(bundle.retriever.encoder, bundle.retriever.gallery, of_two)
        client = start(replace(bundle, retriever=retriever))
        image = (bundle.directory / bundle.manifest.samples[0].file).read_bytes()
        shop, phone = (search(client, image, source=one).json() for one in ("shop", "phone"))
        assert (shop["verdict"], phone["verdict"]) == ("match", "ambiguous")
        assert "calibration queries with a match" in phone["reason"]
        assert phone["result_set"]["promised"] is False
        assert shop["results"] == phone["results"], "probabilities are the same"
        report = client.get("/v1/galleries/digits/calibration").json()
        assert report["sources"] == ["shop", "phone"]
        unknown = search(client, image, source="moon")
        assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_source")
        assert "'shop', 'phone'" in unknown.json()["detail"]

    def test_where_no_source_is_known_that_is_said(self, client: TestClient, digit: bytes) -> None:
        refused = search(client, digit, source="shop")
        assert (refused.status_code, refused.json()["code"]) == (422, "unknown_source")
        assert "none: no source was given to calibrate" in refused.json()["detail"]
