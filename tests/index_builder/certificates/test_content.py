"""What `vouch-build certify` writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index_builder.certificates.content import (
    DIVIDED_PLACES,
    DrawnReview,
    Observed,
    ServedProbabilities,
    content,
    open_certified,
    since,
)
from index_builder.metrics import auroc
from model_store.bundles.manifest import Manifest
from model_store.bundles.publish import publish
from model_store.decision import DriftTest, ErrorTest, MatchDraw, MatchReview, estimate_error
from model_store.feedback import FeedbackLog
from model_store.watch_states import ALL_CALLERS, DriftStates, SavedDrift
from tests.support.calibration_evidence import evidence
from tests.support.certified_bundles import (
    DAY,
    EVIDENCE,
    calibration,
    certified,
    forged,
    published,
    run,
    said,
)
from tests.support.decisions import said as decided
from tests.support.narrowing import not_none


def test_it_says_what_is_promised_and_on_what_evidence(certificate: Path) -> None:
    told, fitted = said(certificate), calibration()
    assert told["delta"] == 0.1
    assert [promise["source"] for promise in told["promises"]] == [None, "phone", "scanner"]
    whole, promised = told["promises"][0], fitted.promises()
    (match,) = whole["matches"]
    assert match["size_class"] == "many"
    assert match["threshold"] == promised.threshold(2)
    assert match["foretold"]["error_bound"] <= 0.05
    assert match["foretold"]["false_match_bound"] == promised.point.false_match_bound
    assert [one["coverage"] for one in whole["result_sets"]] == [0.8, 0.9, 0.95]
    assert whole["result_sets"][1]["promised_for"] == ["many"]
    people = told["population"]
    assert people["present"] == {"n": 300, "n_independent": 300}
    assert people["absent"] == {"n": 200, "n_independent": 30}
    assert people["sources"] == [{"name": "phone", "n": 250}, {"name": "scanner", "n": 250}]
    assert people["present_by_label_size"] == {"one": 0, "few": 0, "many": 300}
    assert told["outlier_flag"]["least_alpha"] == 1 / 301
    assert told["measured"]["evaluation"]["recall_at_1"] == 0.875


def test_probabilities_are_measured_from_the_arrays(certificate: Path) -> None:
    cross = said(certificate)["measured"]["cross_fitted"]
    nothing = EVIDENCE.no_match_probabilities
    assert cross["no_match_auroc"] == auroc(nothing[EVIDENCE.absent], nothing[~EVIDENCE.absent])
    bins = cross["reliability"]
    assert sum(one["n"] for one in bins) == 500
    assert cross["first_item_ece"] == pytest.approx(
        sum(one["weight"] * abs(one["share"] - one["probability"]) for one in bins)
    )
    # Weighted to 5 % absent: 200 absent queries weigh as 300 · 0.05 / 0.95.
    share = sum(one["weight"] * one["share"] for one in bins)
    assert share == pytest.approx(0.95 * EVIDENCE.correct[~EVIDENCE.absent].mean())


def test_the_builder_measures_the_same(digits_bundle: Path) -> None:
    opened = open_certified(digits_bundle)
    told = content(opened, date(2026, 11, 22), None)
    assert told["date"] == DAY
    reported = opened.calibration.report["cross_fitted"]
    cross = told["measured"]["cross_fitted"]
    assert cross["first_item_ece"] == pytest.approx(reported["top1_ece"])
    assert cross["no_match_auroc"] == pytest.approx(reported["absent_auroc"])
    assert cross["error_auroc_of_present"] == pytest.approx(reported["error_auroc"])
    whole = told["promises"][0]["all_sizes"]
    assert whole["coverage"] == pytest.approx(reported["match_coverage"])


def test_the_same_bundle_and_day_give_the_same_bytes(certificate: Path, bundle: Path) -> None:
    cwd = certificate.parents[2]
    again = certified(cwd, bundle, "--key", "key", "--output", "again")
    for name in ("certificate.json", "certificate.html"):
        assert again.with_name(name).read_bytes() == certificate.with_name(name).read_bytes()


def test_shortfalls_are_said_in_words(tmp_path: Path) -> None:
    few = evidence(20, 20, absence="near_misses_of_views")
    report = {"queries": "views_of_items"}
    fitted = calibration(few, report=report, outlier_scores=np.arange(10.0), alpha=0.05)
    certificate = certified(tmp_path, published(tmp_path, fitted))
    told = said(certificate)
    assert not told["promises"][0]["gives_matches"]
    assert told["promises"][0]["matches"][0]["threshold"] is None
    assert told["promises"][0]["all_sizes"] is None
    sentences = " ".join(told["not_promised"])
    for words in (
        "An error of at most 0.05 among matches cannot be promised",
        "A coverage of 0.95 needs 45 independent calibration queries",
        "No query can be flagged as an outlier at a false-alarm rate of 0.05",
        "augmented views of gallery items",
    ):
        assert words in sentences
    page = certificate.with_name("certificate.html").read_text("utf-8")
    assert "No match is given. An error of at most 0.05" in page


def test_of_places_the_distance_of_a_match_is_said_and_no_label(tmp_path: Path) -> None:
    fitted = calibration(evidence(), within=25.0)
    certificate = certified(tmp_path, published(tmp_path, fitted))
    told = said(certificate)
    assert told["population"]["within"] == 25.0
    assert "labels" not in told["population"]
    assert "at most 25 m from the query" in told["population"]["absence_in_words"]
    assert DIVIDED_PLACES in told["not_promised"]
    page = certificate.with_name("certificate.html").read_text("utf-8")
    assert "<dt>labels</dt>" not in page
    assert 'scope="col">labels with' not in page
    assert "any number of images" in page
    assert "label" not in told["valid_while"][0]


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({"absence": "hidden_trained_labels"}, "do not represent absent queries"),
        ({"clusters": np.r_[np.arange(300), 300 + np.arange(300) % 9]}, "9 labels of absent"),
    ],
)
def test_it_says_where_probabilities_may_be_far_off(
    tmp_path: Path, changes: dict[str, Any], unknown: str
) -> None:
    told = said(certified(tmp_path, published(tmp_path, calibration(evidence(**changes)))))
    sentences = " ".join(told["not_promised"])
    off = "may be far off if the share of absent queries exceeds 0.1: "
    assert unknown in sentences.partition(off)[2]


def test_the_page_needs_nothing_else(certificate: Path) -> None:
    page = certificate.with_name("certificate.html").read_text("utf-8")
    told = said(certificate)
    assert "coins &lt;rare&gt;" in page
    assert "<script" not in page
    assert "http" not in page
    bound = told["promises"][0]["matches"][0]["foretold"]["error_bound"]
    assert f"<td>{100 * bound:.1f} %</td>" in page
    measured = told["measured"]["cross_fitted"]
    assert f"calibration error {measured['first_item_ece']:.3f}" in page
    for sentence in told["not_promised"] + told["valid_while"]:
        assert sentence in page


def test_what_happened_since(certificate: Path, bundle: Path) -> None:
    cwd, log = certificate.parents[2], FeedbackLog(certificate.parent / "feedback.sqlite")
    log.ask(bundle.name, [(f"q{n:02}", "coin", MatchDraw(0.1)) for n in range(30)])
    for n in range(20):
        log.decide(decided(f"q{n:02}", item="coin", correct=n % 2 == 0, bundle=bundle.name))
    test = not_none(DriftTest.of(calibration()))
    for _ in range(60):
        test.observe(-4.0)
    saved = SavedDrift(ALL_CALLERS, test.state(), np.zeros(0, np.uint64))
    DriftStates(log.path).save(bundle.name, [saved])

    with_feedback = certified(cwd, bundle, "--key", "key", "--feedback", log.path)
    told = said(with_feedback)["since"]
    assert told["observed"]["n_asked"] == 30
    assert [one["wrong"] for one in told["observed"]["reviews"]] == [False, True] * 10
    assert told["observed"]["said"] == {"n": 20, "probability": pytest.approx(0.9), "share": 0.5}
    assert told["observed"]["drift"] == {
        "n_served": test.n_served,
        "log_capital": test.log_capital,
        "alarmed": True,
    }
    assert told["errors"]["alarmed"]
    assert told["errors"]["rate"] == 0.5
    assert told["errors"]["course"][-1]["n"] == 20
    assert "the promises have ended" in with_feedback.with_name("certificate.html").read_text()
    assert run(cwd, "verify", with_feedback, "--bundle", bundle).returncode == 0

    forged(with_feedback, lambda told: told["since"]["errors"].update(n_wrong=1))
    lines = run(cwd, "verify", with_feedback, "--bundle", bundle).stdout.splitlines()
    assert lines[1:] == ["since.errors.n_wrong: the certificate says 1, the bundle gives 10"]


def test_errors_since_are_those_of_the_running_test() -> None:
    draw = MatchDraw(0.1, 0.2, 0.05, 4, 0.3, 0.04)
    reviews = [MatchReview(n == 37, draw) for n in range(38)]
    seen = Observed(
        n_asked=50,
        reviews=[DrawnReview.of(one) for one in reviews],
        said=ServedProbabilities(n=1, probability=0.5, share=1.0),
        drift=None,
    )
    told, test = since(seen, 0.05)["errors"], ErrorTest(0.05)
    for one in reviews:
        test.observe(one)
    assert told["log_evidence"] == test.log_evidence
    assert told["interval"] == list(estimate_error(reviews).interval)
    assert len(told["course"]) == 12
    assert told["course"][-1] == {"n": 38, "n_wrong": 1, "log_evidence": test.log_evidence}


@pytest.mark.parametrize(
    ("options", "message", "status"),
    [
        (["--key", "key.pub"], "no private key", 1),
        (["--feedback", "nowhere"], "feedback file nowhere does not exist", 1),
        (["--feedback", "key"], "not a feedback file", 1),
        (["--date", "yesterday"], "--date 'yesterday' is not a date", 2),
        (["--output", "bundles/{id}/inside"], "is in the bundle", 2),
    ],
)
def test_what_cannot_be_used_is_refused(
    certificate: Path, bundle: Path, options: list[str], message: str, status: int
) -> None:
    cwd = certificate.parents[2]
    given = [option.format(id=bundle.name) for option in options]
    done = run(cwd, "certify", bundle, *given)
    assert done.returncode == status
    assert message in " ".join(done.stderr.split())


def test_a_bundle_without_calibration_has_nothing_to_certify(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    (staging / "encoder.onnx").write_bytes(b"weights")
    bare = publish(
        staging,
        Manifest({"name": "g"}, {"fingerprint": "f"}, None, None, (), {}),
        tmp_path / "bundles",
    )
    done = run(tmp_path, "certify", bare)
    assert done.returncode == 1
    assert "is not calibrated, so it has no guarantees" in " ".join(done.stderr.split())


@pytest.mark.process
def test_neither_command_needs_torch(certificate: Path, bundle: Path) -> None:
    script = (
        "import sys\n"
        "from index_builder.commands.app import app\n"
        "app(standalone_mode=False)\n"
        "assert 'index_builder.certificates' in sys.modules\n"
        "assert not {'torch', 'sklearn'} & sys.modules.keys()\n"
    )
    vouch = [sys.executable, "-c", script]
    copy = shutil.copy(certificate, certificate.with_name("kept.json"))
    for arguments in (
        ["certify", str(bundle), "--date", DAY, "--output", str(certificate.parent)],
        ["verify", str(copy), "--bundle", str(bundle)],
    ):
        subprocess.run([*vouch, *arguments], check=True, capture_output=True, timeout=120)
