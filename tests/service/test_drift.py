"""Drift of one caller's queries: its answers lose the guarantee, and other callers lose nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import (
    OPERATOR_FILE,
    OperatorSettings,
    change_operator,
    read_operator,
)
from model_store.curation import COPY
from model_store.decision import Calibration
from model_store.errors import ConfigError, PointerUnreadable
from model_store.retriever import Retriever
from service.access.access import Caller, account_of_address, account_of_key
from service.app import create_app
from service.serving.watch import MAX_STREAMS, DriftWatch, Watch
from service.settings import Settings
from tests.end_to_end.keys import KeysFile, bearer
from tests.end_to_end.processes import wait_until
from tests.end_to_end.questions import picture, search
from tests.support.local_client import LocalClient
from tests.support.narrowing import not_none

StartClient = Callable[..., TestClient]

N_UNUSUAL = 40
ACKNOWLEDGE = "/v1/galleries/digits/calibration/acknowledge"
REPORT = "/v1/galleries/digits/calibration"


@pytest.fixture(scope="session")
def bundle(bundle: Bundle) -> Bundle:
    """The digits with an error that their two withheld labels are enough to guarantee."""
    encoder, gallery = bundle.retriever.encoder, bundle.retriever.gallery
    fitted = replace(calibration_of(bundle), max_error=0.1)
    return replace(bundle, retriever=Retriever(encoder, gallery, fitted))


def unusual(client: TestClient, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """Send images that are no digits, and return the last answer."""
    client.headers.update(headers or {})
    answer: dict[str, Any] = {}
    for width in range(20, 20 + N_UNUSUAL):
        answer = search(client, picture("PNG", width, 30)).json()
    return answer


def matching(bundle: Bundle) -> bytes:
    return (bundle.directory / bundle.manifest.samples[0].file).read_bytes()


def asked(client: TestClient, image: bytes, headers: dict[str, str]) -> dict[str, Any]:
    client.headers.update(headers)
    answer: dict[str, Any] = search(client, image).json()
    return answer


def gauge(client: TestClient, name: str) -> float:
    text = client.get("/metrics").text
    [value] = re.findall(rf'^{name}{{gallery="digits"}} (.+)$', text, re.MULTILINE)
    return float(value)


class TestServed:
    def test_unusual_uploads_by_one_key_change_nothing_for_another(
        self, start: StartClient, bundle: Bundle, keys_file: KeysFile
    ) -> None:
        client, image = start(keys=keys_file.path), matching(bundle)
        one, other = (bearer(keys_file.make("read", name=name)) for name in ("one", "other"))
        before = asked(client, image, other)
        assert (before["verdict"], before["guaranteed"]) == ("match", True)
        last = unusual(client, one)
        assert (last["verdict"], last["guaranteed"]) == ("out_of_distribution", False)
        after = asked(client, image, other)
        names = ("verdict", "reason", "guaranteed", "results", "result_set", "bundle", "absent")
        assert {name: after[name] for name in names} == {name: before[name] for name in names}
        report = client.get(REPORT).json()
        assert report["status"] == "valid"
        assert (report["drift"]["n_streams"], report["drift"]["n_alarmed"]) == (2, 1)

    def test_an_ordinary_query_of_the_caller_keeps_its_verdict_without_the_guarantee(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        unusual(client)
        answer = search(client, matching(bundle)).json()
        assert (answer["verdict"], answer["guaranteed"]) == ("match", False)
        state = answer["bundle"]["calibration"]
        assert state["status"] == "drifting"
        assert answer["reason"] == state["reason"] == answer["result_set"]["reason"]
        assert "recent queries differ" in answer["reason"]
        assert answer["result_set"]["promised"] is False
        assert client.get(REPORT).json()["status"] == "drifting"

    def test_the_query_that_raises_the_alarm_is_answered_without_the_guarantee(
        self, client: TestClient
    ) -> None:
        states = []
        for width in range(20, 20 + N_UNUSUAL):
            answer = search(client, picture("PNG", width, 30)).json()
            assert answer["guaranteed"] is (answer["bundle"]["calibration"]["status"] == "valid")
            states.append(answer["guaranteed"])
        assert states == sorted(states, reverse=True)
        assert (states[0], states[-1]) == (True, False)

    def test_withhold_gives_the_caller_no_match(
        self, start: StartClient, bundle: Bundle, keys_file: KeysFile
    ) -> None:
        client, image = start(keys=keys_file.path, on_drift="withhold"), matching(bundle)
        one, other = (bearer(keys_file.make("read", name=name)) for name in ("one", "other"))
        unusual(client, one)
        withheld, kept = asked(client, image, one), asked(client, image, other)
        assert (withheld["verdict"], withheld["guaranteed"]) == ("ambiguous", False)
        assert withheld["bundle"]["calibration"]["status"] == "stale"
        assert (kept["verdict"], kept["guaranteed"]) == ("match", True)

    def test_the_same_image_again_is_no_further_evidence(
        self, client: TestClient, bundle: Bundle
    ) -> None:
        for _ in range(N_UNUSUAL):
            search(client, picture("PNG", 20, 30))
        assert client.get(REPORT).json()["drift"]["n_served"] == 1
        assert search(client, matching(bundle)).json()["guaranteed"] is True

    def test_the_operator_sees_alarms_in_metrics_and_log(
        self, client: TestClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert gauge(client, "vouch_drift_alarmed_callers") == 0
        unusual(client)
        assert gauge(client, "vouch_drift_alarmed_callers") == 1
        assert gauge(client, "vouch_drift_alarm") == 1
        assert gauge(client, "vouch_calibration_stale") == 0
        logged = [one.fields["caller"] for one in caplog.records if one.message == "drift"]  # type: ignore[attr-defined]
        assert len(logged) == 2
        assert "all callers" in logged

    def test_a_bundle_without_scores_of_absent_queries_is_served_without_the_test(
        self, start: StartClient, bundle: Bundle
    ) -> None:
        fitted = replace(calibration_of(bundle), absent_outlier_scores=None)
        retriever = Retriever(bundle.retriever.encoder, bundle.retriever.gallery, fitted)
        client = start(replace(bundle, retriever=retriever))
        unusual(client)
        answer = search(client, matching(bundle)).json()
        assert (answer["verdict"], answer["guaranteed"]) == ("match", True)
        report = client.get(REPORT).json()["drift"]
        assert "vouch-build calibrate BUNDLES" in report["reason"]
        assert report["n_served"] == 0


class TestAcknowledging:
    def test_the_alarm_ends_for_the_caller_and_comes_back_with_the_queries(
        self, start: StartClient, bundle: Bundle, tmp_path: Path
    ) -> None:
        client = start(replace(bundle, root=tmp_path))
        unusual(client)
        done = client.post(ACKNOWLEDGE).json()
        [caller] = done["alarmed"]
        assert caller.startswith("address ")
        answer = search(client, matching(bundle)).json()
        assert (answer["verdict"], answer["guaranteed"]) == ("match", True)
        assert client.get(REPORT).json()["drift"]["n_alarmed"] == 0
        for width in range(20, 20 + N_UNUSUAL):
            search(client, picture("PNG", width, 40))
        assert search(client, matching(bundle)).json()["guaranteed"] is False

    def test_it_needs_the_scope_admin(
        self, start: StartClient, bundle: Bundle, keys_file: KeysFile, tmp_path: Path
    ) -> None:
        client = start(replace(bundle, root=tmp_path), keys=keys_file.path)
        for scope, status in (("write", 403), ("admin", 200)):
            client.headers.update(bearer(keys_file.make(scope, name=scope)))  # type: ignore[arg-type]
            assert client.post(ACKNOWLEDGE).status_code == status
            share = client.post(f"{REPORT}/absent-share", json={"share": 0.2})
            assert share.status_code == status
            assert client.delete(f"{REPORT}/absent-share").status_code == status

    def test_an_alarm_outlives_a_restart_and_ends_with_an_acknowledgement_meanwhile(
        self, bundle: Bundle, tmp_path: Path
    ) -> None:
        settings = Settings(decoders=0, feedback=tmp_path / "feedback.db")
        in_root, image = replace(bundle, root=tmp_path), matching(bundle)
        with LocalClient(create_app(settings, [in_root])) as first:
            unusual(first)
        with LocalClient(create_app(settings, [in_root])) as second:
            assert search(second, image).json()["guaranteed"] is False
        change_operator(tmp_path, OperatorSettings.acknowledged)
        with LocalClient(create_app(settings, [in_root])) as third:
            assert search(third, image).json()["guaranteed"] is True


class TestOperatorFile:
    def test_what_is_decided_is_read_again(self, tmp_path: Path) -> None:
        assert read_operator(tmp_path) == OperatorSettings()
        written = change_operator(tmp_path, lambda now: now.with_share(0.3))
        assert written.absent_share == 0.3
        assert read_operator(tmp_path) == written
        acknowledged = change_operator(tmp_path, OperatorSettings.acknowledged)
        assert acknowledged.acknowledged_at > 0
        assert (acknowledged.absent_share, acknowledged.adopted_at) == (0.3, written.adopted_at)
        back = change_operator(tmp_path, lambda now: now.with_share(None))
        assert (back.absent_share, back.adopted_at) == (None, None)
        assert back.acknowledged_at == acknowledged.acknowledged_at

    @pytest.mark.parametrize("content", ["", "{}", '{"absent_share": 2}', "[1]"])
    def test_another_content_is_refused_and_can_be_replaced(
        self, tmp_path: Path, content: str
    ) -> None:
        (tmp_path / OPERATOR_FILE).write_text(content)
        with pytest.raises(PointerUnreadable, match="OPERATOR"):
            read_operator(tmp_path)
        assert change_operator(tmp_path, lambda now: now.with_share(0.1)).absent_share == 0.1

    @pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
    def test_a_share_outside_its_range_is_refused(self, share: float) -> None:
        with pytest.raises(ConfigError, match="above 0 and below 1"):
            OperatorSettings().with_share(share)

    def test_a_running_service_follows_it_and_ignores_a_damaged_one(
        self, bundle: Bundle, tmp_path: Path, digit: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = Settings(decoders=0, canary_period_s=0.05)
        with LocalClient(create_app(settings, [replace(bundle, root=tmp_path)])) as client:

            def origin() -> str:
                found: str = search(client, digit).json()["absent"]["origin"]
                return found

            assert origin() == "bundle"
            change_operator(tmp_path, lambda now: now.with_share(0.3))
            wait_until(lambda: origin() == "adopted")
            (tmp_path / OPERATOR_FILE).write_text("{}")
            wait_until(lambda: "OPERATOR not read" in caplog.text)
            assert origin() == "adopted"
            done = client.post(f"{REPORT}/absent-share", json={"share": 0.2}).json()
            assert done["persisted"] is True
            assert read_operator(tmp_path).absent_share == 0.2

    def test_the_next_answer_of_another_process_follows_it(
        self, start: StartClient, bundle: Bundle, tmp_path: Path
    ) -> None:
        in_root, image = replace(bundle, root=tmp_path), matching(bundle)
        one, other = start(in_root), start(in_root)
        unusual(other)
        assert search(other, image).json()["guaranteed"] is False
        for share in (0.9, 0.05):
            assert one.post(f"{REPORT}/absent-share", json={"share": share}).json()["persisted"]
            assert search(other, image).json()["absent"]["share"] == share
        assert one.post(ACKNOWLEDGE).json()["persisted"]
        assert search(other, image).json()["guaranteed"] is True
        assert one.delete(f"{REPORT}/absent-share").json()["persisted"]
        assert search(other, image).json()["absent"]["origin"] == "bundle"

    def test_without_a_directory_it_holds_for_the_process(
        self, start: StartClient, bundle: Bundle, digit: bytes
    ) -> None:
        client = start(replace(bundle, root=None))
        done = client.post(f"{REPORT}/absent-share", json={"share": 0.2}).json()
        assert done["persisted"] is False
        assert search(client, digit).json()["absent"]["origin"] == "adopted"


def test_photographs_of_the_gallery_itself_are_no_drift(start: StartClient, bundle: Bundle) -> None:
    """Many visitors begin with them, and no calibration query finds its own copy."""
    client = start(bundle)
    for item in bundle.retriever.gallery.items(np.arange(30)):
        thumbnail = client.get(f"/v1/galleries/digits/items/{item.id}/thumbnail").content
        answer = search(client, thumbnail).json()
        assert answer["results"][0]["id"] == item.id
        assert answer["results"][0]["similarity"] >= COPY
        assert answer["bundle"]["calibration"]["status"] == "valid"
    assert client.get(REPORT).json()["drift"]["n_served"] == 0


@pytest.mark.parametrize(
    ("largest", "similarity", "n_served"),
    [(0.97, 0.98, 0), (0.98, 0.98, 1), (None, 0.98, 1), (0.99999, COPY + 1e-6, 0)],
    ids=["nearer than calibration", "as near", "older calibration", "copy"],
)
def test_query_nearer_than_every_calibration_query_is_not_counted(
    bundle: Bundle, largest: float | None, similarity: float, n_served: int
) -> None:
    encoder, gallery = bundle.retriever.encoder, bundle.retriever.gallery
    fitted = replace(calibration_of(bundle), largest_similarity=largest)
    watch = Watch(replace(bundle, retriever=Retriever(encoder, gallery, fitted)))
    found = bundle.retriever.search(picture("PNG", 20, 30))
    nearest = found.matches[0].model_copy(update={"similarity": similarity})
    watch.searched("0" * 16, replace(found, matches=(nearest,)), "somebody")
    assert watch.drift.report.n_served == n_served


class TestStreams:
    def watch(self, bundle: Bundle) -> DriftWatch:
        return DriftWatch(calibration_of(bundle))

    def test_too_many_callers_drop_the_one_idle_for_longest(self, bundle: Bundle) -> None:
        watch = self.watch(bundle)
        for place in range(N_UNUSUAL):
            watch.observe(f"{place:016x}", 99.0 + place, "key alarmed")
        assert "key alarmed" in watch.report.alarmed
        for place in range(MAX_STREAMS):
            watch.observe(f"{1000 + place:016x}", 0.0, f"key {place}")
        assert watch.report.n_streams == MAX_STREAMS
        assert not watch.report.alarmed
        assert watch.report.n_served > 0

    def test_what_was_saved_is_restored(self, bundle: Bundle) -> None:
        watch, again = self.watch(bundle), self.watch(bundle)
        for place in range(N_UNUSUAL):
            watch.observe(f"{place:016x}", 99.0 + place, "key a")
        saved = watch.unsaved()
        assert {one.caller for one in saved} == {"key a", ""}
        assert watch.unsaved() == []
        again.restore(saved)
        assert again.report == watch.report
        assert again.observe("0" * 16, 99.0, "key a") is False, "known"
        assert not_none(again.reason("key a"))
        assert again.reason("key b") is None
        assert again.reason("") is None, "all callers together change no answer"

    def test_an_alarm_ends_by_itself_after_ordinary_queries(self, bundle: Bundle) -> None:
        watch, ordinary = self.watch(bundle), calibration_of(bundle).outlier_scores
        for place in range(N_UNUSUAL):
            watch.observe(f"{place:016x}", 99.0 + place, "key a")
        assert watch.reason("key a") is not None
        scores = np.random.default_rng(0).permutation(np.tile(ordinary, 5))[:400]
        for place, score in enumerate(scores.tolist()):
            watch.observe(f"{10**6 + place:016x}", score, "key a")
        assert watch.reason("key a") is None

    @pytest.mark.parametrize(
        ("address", "stream"),
        [
            ("192.0.2.7", "address 192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "address 2001:db8:1:2::/64"),
            ("testclient", "address testclient"),
        ],
    )
    def test_callers_without_a_key_share_the_stream_of_their_address(
        self, address: str, stream: str
    ) -> None:
        caller = Caller(address, account_of_address(address), None, "read", None)
        assert caller.stream == stream

    def test_a_key_has_a_stream_of_its_own(self) -> None:
        assert Caller("ab", account_of_key("ab"), "shop", "read", None).stream == "key ab"


def calibration_of(bundle: Bundle) -> Calibration:
    return not_none(bundle.retriever.calibration)
