"""Matches drawn at random for review, what is said of them, and what outlives a restart."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from model_store.bundles.bundle import Bundle
from model_store.decision import SIZE_CLASSES, MatchDraw
from model_store.feedback import FeedbackLog
from model_store.retriever import Retriever
from model_store.watch_states import DriftStates
from service.app import create_app
from service.serving.reviewing import Audit
from service.settings import Settings
from tests.end_to_end.processes import wait_until
from tests.end_to_end.questions import picture, search
from tests.support.calibration_evidence import evidence
from tests.support.local_client import LocalClient
from tests.support.narrowing import not_none

StartClient = Callable[..., TestClient]

IDS = [f"{number:064x}" for number in range(4000)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "feedback.sqlite3"


@pytest.fixture
def lenient(bundle: Bundle) -> Bundle:
    """The digits, where a first item that is likelier than not is a match: none was wrong."""
    calibration = bundle.retriever.calibration
    assert calibration is not None
    absent = np.arange(400) >= 300
    faultless = evidence(300, 100, first_probabilities=np.where(absent, 0.1, 0.5), correct=~absent)
    easy = replace(calibration, evidence=faultless)
    assert easy.promises().threshold(SIZE_CLASSES.index("many")) < 0.51
    retriever = Retriever(bundle.retriever.encoder, bundle.retriever.gallery, easy)
    return replace(bundle, retriever=retriever)


@pytest.fixture
def client(start: StartClient, lenient: Bundle, file: Path) -> TestClient:
    return start(lenient, feedback=file, audit_share=1)


@pytest.fixture
def matching(lenient: Bundle) -> list[bytes]:
    """Images whose verdict is `match`."""
    images = [
        (lenient.directory / sample.file).read_bytes()
        for sample in lenient.manifest.samples
        if sample.belongs
    ]
    found = [i for i in images if lenient.retriever.search(i).decision.verdict == "match"]
    assert len(found) >= 3
    return found


def errors(client: TestClient) -> Any:
    return client.get("/v1/galleries/digits/calibration").json()["errors_over_time"]


def review(
    client: TestClient, answer: dict[str, Any], *, correct: bool, place: int = 0
) -> dict[str, Any]:
    said = {
        "query_id": answer["query"]["id"],
        "item_id": answer["results"][place]["id"],
        "correct": correct,
    }
    kept: dict[str, Any] = client.post("/v1/galleries/digits/feedback", json=said).json()
    return kept


def capital(client: TestClient) -> float:
    """Evidence of drift."""
    text = client.get("/metrics").text
    [said] = re.findall(r'^vouch_drift_log_capital{gallery="digits"} (.+)$', text, re.MULTILINE)
    return float(said)


class TestDrawing:
    def audit(self, bundle: Bundle, share: float, bundle_id: str = "b", log: bool = True) -> Audit:
        kept = FeedbackLog(Path("unused")) if log else None
        return Audit(bundle_id, bundle.retriever.calibration, kept, share)

    @pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
    def test_draw_of_many_queries_has_known_probability(
        self, bundle: Bundle, matching: list[bytes], share: float
    ) -> None:
        answer = bundle.retriever.search(matching[0])
        draws = [self.audit(bundle, share).draw(one, answer) for one in IDS]
        drawn = [one for one in draws if one is not None]
        if not share:
            assert not drawn
            return
        probability, least = drawn[0].probability, share * max(0.5, share)
        assert least <= probability <= 1
        for found, expected in (
            (len(drawn), probability),
            (sum(one.evenly for one in drawn), least),
        ):
            mean = expected * len(IDS)
            assert abs(found - mean) <= 4 * (mean * (1 - expected)) ** 0.5

    def test_replicas_draw_the_same_and_bundles_do_not(
        self, bundle: Bundle, matching: list[bytes]
    ) -> None:
        answer = bundle.retriever.search(matching[0])
        draws = [
            [audit.draw(one, answer) for one in IDS[:500]]
            for audit in (
                self.audit(bundle, 0.3),
                self.audit(bundle, 0.3),
                self.audit(bundle, 0.3, "another"),
            )
        ]
        assert draws[0] == draws[1] != draws[2]

    def test_nothing_is_drawn_where_nobody_could_answer(
        self, bundle: Bundle, bare_bundle: Bundle, matching: list[bytes]
    ) -> None:
        answer = bundle.retriever.search(matching[0])
        assert self.audit(bundle, 1.0, log=False).draw(IDS[0], answer) is None
        assert self.audit(bare_bundle, 1.0).draw(IDS[0], answer) is None

    def test_each_match_is_in_one_block(
        self, bundle: Bundle, matching: list[bytes], file: Path
    ) -> None:
        """Whatever was drawn: the blocks hold all matches up to the last draw, each once."""
        audit = Audit("b", bundle.retriever.calibration, FeedbackLog(file), 0.3)
        answer, last = bundle.retriever.search(matching[0]), 0
        for number, one in enumerate([*IDS[:200], *IDS[:200]], start=1):
            draw = audit.draw(one, answer)
            audit.count(one, answer, draw)
            last = number if draw is not None and number <= 200 else last
        audit.keep()
        with sqlite3.connect(file) as connection:
            found = connection.execute(
                "SELECT SUM(n_before + 1), SUM(predicted_before + predicted) FROM audits"
            ).fetchone()
        wrong = 1 - not_none(answer.matches[0].match_probability)
        assert found == (last, pytest.approx(last * wrong))


def test_an_answer_says_that_it_was_drawn_whether_cached_or_not(
    client: TestClient, matching: list[bytes]
) -> None:
    first, second = (search(client, matching[0]).json() for _ in range(2))
    assert (first["cache"], second["cache"]) == ("miss", "hit")
    assert first["audit"] is second["audit"] is True
    metrics = client.get("/metrics").text
    assert 'vouch_audits_total{gallery="digits"} 2.0' in metrics


def test_only_a_first_page_with_verdict_match_is_drawn(
    client: TestClient, matching: list[bytes], stranger: bytes
) -> None:
    other = search(client, stranger).json()
    assert other["verdict"] != "match"
    assert other["audit"] is False
    first = search(client, matching[0], limit=2).json()
    path = "/v1/galleries/digits/search/next"
    second = client.get(path, params={"cursor": first["next_cursor"]}).json()
    assert (first["audit"], second["verdict"], second["audit"]) == (True, "match", False)


def test_none_is_drawn_where_no_feedback_is_kept(
    start: StartClient, lenient: Bundle, matching: list[bytes]
) -> None:
    client = start(lenient, audit_share=1)
    assert search(client, matching[0]).json()["audit"] is False
    assert errors(client) is None
    assert "vouch_audited_matches{" not in client.get("/metrics").text


def test_reviews_of_what_was_drawn_are_counted_and_no_others(
    client: TestClient, matching: list[bytes], stranger: bytes, bundle: Bundle
) -> None:
    calibration = bundle.retriever.calibration
    assert calibration is not None
    before = errors(client)
    assert (before["n_asked"], before["n_reviewed"], before["alarm"]) == (0, 0, False)
    assert before["error_interval"] == [0.0, 1.0]
    assert before["max_error"] == calibration.max_error
    answers = [search(client, image).json() for image in matching[:3]]
    assert review(client, answers[0], correct=True)["audited"] is True
    assert review(client, answers[1], correct=False)["audited"] is True
    assert review(client, answers[1], correct=False, place=1)["audited"] is False
    assert review(client, search(client, stranger).json(), correct=False)["audited"] is False
    after = errors(client)
    assert (after["n_asked"], after["n_reviewed"], after["n_wrong"]) == (3, 2, 1)
    lower, upper = after["error_interval"]
    assert (lower, upper) == (0, 1)
    assert after["error"] == 0.5
    assert after["log_evidence"] > 0
    metrics = client.get("/metrics").text
    assert 'vouch_audited_matches{gallery="digits"} 2.0' in metrics
    assert 'vouch_audited_errors{gallery="digits"} 1.0' in metrics
    assert 'vouch_error_alarm{gallery="digits"} 0.0' in metrics


def test_the_last_word_on_a_match_counts_once(client: TestClient, matching: list[bytes]) -> None:
    answer = search(client, matching[0]).json()
    for correct in (False, False, True):
        review(client, answer, correct=correct)
    assert (errors(client)["n_reviewed"], errors(client)["n_wrong"]) == (1, 0)


def test_too_many_errors_make_the_calibration_stale_also_after_a_restart(
    start: StartClient, file: Path, matching: list[bytes], lenient: Bundle
) -> None:
    log, bundle_id = FeedbackLog(file), lenient.manifest.id
    client = start(lenient, feedback=file, audit_share=1)
    answer = search(client, matching[0]).json()
    review(client, answer, correct=False)
    assert errors(client)["alarm"] is False
    with sqlite3.connect(file) as connection:  # as if more had been asked and answered
        for one in IDS[:12]:
            connection.execute(
                "INSERT INTO feedback SELECT gallery, bundle, ?, item_id, correct, rank, "
                "match_probability, received_at, match_log_odds, match_fingerprint, "
                "first_received_at, selection, draw_probability FROM feedback WHERE query_id = ?",
                (one, answer["query"]["id"]),
            )
    item = answer["results"][0]["id"]
    log.ask(bundle_id, [(one, item, MatchDraw(0.1)) for one in IDS[:12]])
    review(client, answer, correct=False)
    for served in (client, start(lenient, feedback=file)):
        report = served.get("/v1/galleries/digits/calibration").json()
        assert report["errors_over_time"]["alarm"] is True
        assert report["errors_over_time"]["n_wrong"] == 13
        assert report["status"] == "stale"
        answer = search(served, matching[1]).json()
        assert answer["result_set"]["promised"] is False
        assert answer["verdict"] == "ambiguous", "what was a match is withheld"
        assert answer["reason"] == answer["bundle"]["calibration"]["reason"]
        assert "13 matches that were drawn at random" in answer["reason"]
        assert 'vouch_error_alarm{gallery="digits"} 1.0' in served.get("/metrics").text


def test_a_restart_forgets_no_query_that_was_seen(
    start: StartClient, file: Path, bundle: Bundle
) -> None:
    with LocalClient(create_app(Settings(decoders=0, feedback=file), [bundle])) as first:
        for width in range(20, 28):
            search(first, picture("PNG", width, 30))
        before = capital(first)
    second = start(feedback=file)
    assert capital(second) == before != 0
    search(second, picture("PNG", 20, 30))  # seen before the restart
    assert capital(second) == before
    search(second, picture("PNG", 28, 30))
    assert capital(second) != before


def test_drift_is_kept_while_serving_so_that_a_crash_loses_little(
    start: StartClient, file: Path, bundle: Bundle
) -> None:
    client = start(feedback=file, canary_period_s=0.05)
    search(client, picture("PNG", 20, 30))
    states, bundle_id = DriftStates(file), bundle.manifest.id
    wait_until(lambda: len(states.load(bundle_id)) > 0)
    saved = {one.caller: one for one in states.load(bundle_id)}
    assert len(saved) == 2, "of the caller and of all callers"
    for one in saved.values():
        assert len(one.seen) == sum(one.test.counts) == 1


def test_a_file_that_cannot_be_used_stops_no_query(
    start: StartClient, file: Path, digit: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.parent.mkdir()
    file.write_bytes(b"not a database at all, and longer than a header of one is" * 4)
    client = start(feedback=file)
    assert search(client, digit).status_code == 200
    assert "drift and reviews not kept" in caplog.text
