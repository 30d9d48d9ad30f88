"""`vouch-build certify` and `verify`, on a small bundle whose calibration is made up."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build_command import Done, vouch_build
from bundle_copies import flip_a_byte
from calibration_evidence import evidence

from index_builder.certificates.content import content, open_certified
from index_builder.certificates.files import read_certificate, write_certificate
from index_builder.certificates.signing import read_private_key
from index_builder.certificates.since import Observed, Said, since
from index_builder.metrics import auroc
from model_store.bundle import Manifest, publish
from model_store.decision import (
    OUTLIER_SIGNALS,
    SIGNALS,
    Calibration,
    DriftTest,
    ErrorTest,
    Evidence,
    LabelMeans,
    LogisticModel,
    OutlierDetector,
    OutlierFusion,
    Recalibration,
    VennAbers,
    error_interval,
)
from model_store.decision.calibration import ARRAYS_FILE, CALIBRATION_FILE
from model_store.drift_states import DriftStates, SavedDrift
from model_store.feedback import Feedback, FeedbackLog

DAY = "2026-11-22"

EVIDENCE = evidence(
    300,
    200,
    sources=np.arange(500) % 2,
    source_names=["phone", "scanner"],
)


def calibration(of: Evidence = EVIDENCE, **changes: Any) -> Calibration:
    n_signals, n_outlier = len(SIGNALS), len(OUTLIER_SIGNALS)
    fields: dict[str, Any] = {
        "encoder_fingerprint": "encoder",
        "search": {"index": "IndexFlatIP", "n_items": 60, "n_candidates": 200},
        "n_candidates": 200,
        "n_queries": 300,
        "alpha": 0.05,
        "coverage": 0.9,
        "max_error": 0.05,
        "max_false_match_rate": 0.1,
        "delta": 0.1,
        "assumed_absent": 0.05,
        "expected_absent": None,
        "uncertainties": np.arange(300) / 300,
        "outlier_scores": np.sort(np.random.default_rng(0).standard_normal(300)),
        "means": LabelMeans(np.eye(3, 2, dtype=np.float32)),
        "label_classes": np.full(3, 2, dtype=np.int8),
        "n_labels": np.array([0, 0, 3]),
        "detector": OutlierDetector(
            1,
            *(np.ones(shape, np.float32) for shape in (3, (3, 2), (4, 2), (3, 2), (2, 2))),
            0.5,
            1.0,
            0.3,
            np.ones((4, 4), np.float32),
        ),
        "fusion": OutlierFusion(
            np.full(n_outlier, 0.2),
            np.tile([0.0, 1.0], (n_outlier, 1)),
            np.tile([0.1, 0.7], (n_outlier, 1)),
            np.ones(n_outlier),
        ),
        "match": LogisticModel(np.zeros(n_signals), np.zeros(n_signals), np.ones(n_signals), 0.0),
        "intervals": VennAbers(
            np.array([-3.0, 0, 3]), np.array([0.1, 0.4, 0.7]), np.array([0.2, 0.6, 1])
        ),
        "feedback": Recalibration(),
        "evidence": of,
        "quality_limits": {},
        "report": {"queries": "held_out_images"},
    }
    return Calibration(**(fields | changes))


def published(root: Path, fitted: Calibration | None = None) -> Path:
    """Publish a bundle of a calibration and nothing else."""
    staging = root / "staging"
    staging.mkdir(parents=True)
    (fitted or calibration()).save(staging)
    gallery = {"name": "coins <rare>", "n_items": 60}
    metrics = {"recall_at_1": 0.875, "verdicts": {"matched": {"match": 0.75}}}
    return publish(staging, Manifest(gallery, {}, {}, metrics, (), {}), root / "bundles")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return published(tmp_path)


@pytest.fixture
def certificate(tmp_path: Path, bundle: Path) -> Path:
    """A signed one, beside its key."""
    done = run(tmp_path, "certify", "--new-key", "key")
    assert done.returncode == 0, done.stderr
    return certified(tmp_path, bundle, "--key", "key")


def run(cwd: Path, *arguments: object) -> Done:
    return vouch_build(*[str(argument) for argument in arguments], cwd=cwd)


def certified(cwd: Path, bundle: Path, *options: object) -> Path:
    done = run(cwd, "certify", bundle, "--date", DAY, *options)
    assert done.returncode == 0, done.stderr
    return cwd / done.stdout.strip()


def said(certificate: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(certificate.read_text("utf-8"))["content"]
    return found


def forged(certificate: Path, change: Any) -> None:
    """Change the content of a certificate, and write it as `certify` would."""
    read = read_certificate(certificate)
    change(read.content)
    certificate.write_bytes(read.to_bytes())


def test_a_certificate_holds_for_its_bundle(certificate: Path, bundle: Path) -> None:
    cwd = certificate.parents[2]
    assert certificate == cwd / "certificates" / bundle.name / "certificate.json"
    done = run(cwd, "verify", certificate, "--bundle", bundle.parent, "--public-key", "key.pub")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every number holds; signed by the key that was named" in done.stdout


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
    assert (people["present"]["n"], people["present"]["n_clusters"]) == (300, 300)
    assert (people["absent"]["n"], people["absent"]["n_clusters"]) == (200, 30)
    assert people["absent"]["n_independent"] < 200
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


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("delta",), 0.01),
        (("promises", 0, "matches", 0, "foretold", "error_bound"), 0.001),
        (("promises", 1, "result_sets", 2, "promised_for"), ["few", "many"]),
        (("population", "absent", "n_clusters"), 200),
        (("measured", "cross_fitted", "no_match_auroc"), 0.999),
        (("measured", "evaluation", "recall_at_1"), 0.99),
        (("bundle", "sha256", ARRAYS_FILE), "0" * 64),
        (("not_promised",), []),
        (("valid_while",), None),
    ],
)
def test_a_forged_number_is_named(
    certificate: Path, bundle: Path, path: tuple[str | int, ...], value: Any
) -> None:
    def change(told: Any) -> None:
        *outer, last = path
        for step in outer:
            told = told[step]
        told[last] = value

    forged(certificate, change)
    done = run(certificate.parent, "verify", certificate, "--bundle", bundle)
    assert done.returncode == 1
    names = [line.split(": ")[0] for line in done.stdout.splitlines()]
    wanted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)[1:]
    assert names[0] == "signature"
    assert len(names) == 2 or path == ("promises", 1, "result_sets", 2, "promised_for")
    assert all(name.startswith(wanted) for name in names[1:])


def test_a_forged_number_signed_again_is_named(certificate: Path, bundle: Path) -> None:
    told = said(certificate)
    told["promises"][0]["matches"][0]["threshold"] = 0.5
    cwd = certificate.parents[2]
    write_certificate(told, read_private_key(cwd / "key"), certificate.parent)
    done = run(cwd, "verify", certificate, "--bundle", bundle, "--public-key", "key.pub")
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert line.startswith("promises[0].matches[0].threshold: the certificate says 0.5, the bundle")


def test_left_out_and_added_fields_are_named(certificate: Path, bundle: Path) -> None:
    def change(told: Any) -> None:
        del told["outlier_flag"]["can_flag"]
        told["population"]["n_experts"] = 3

    forged(certificate, change)
    lines = run(certificate.parent, "verify", certificate, "--bundle", bundle).stdout.splitlines()
    assert lines[1:] == [
        "outlier_flag.can_flag: the certificate leaves it out",
        "population.n_experts: the certificate says it, the bundle does not",
    ]


def test_a_changed_array_is_found(certificate: Path, bundle: Path) -> None:
    flip_a_byte(bundle / ARRAYS_FILE)
    done = run(certificate.parent, "verify", certificate, "--bundle", bundle)
    assert done.returncode == 1
    assert f"{ARRAYS_FILE} differs from its manifest" in done.stdout


def test_changed_evidence_in_a_bundle_of_its_own_is_found(
    certificate: Path, tmp_path: Path
) -> None:
    correct = EVIDENCE.correct.copy()
    correct[np.flatnonzero(~correct & ~EVIDENCE.absent)[0]] = True
    other = published(tmp_path / "other", calibration(replace(EVIDENCE, correct=correct)))
    done = run(tmp_path, "verify", certificate, "--bundle", other)
    assert done.returncode == 1
    names = {line.split(": ")[0] for line in done.stdout.splitlines()}
    assert {"bundle.id", f"bundle.sha256.{ARRAYS_FILE}"} <= names
    assert "measured.cross_fitted.first_item_correct_share_of_present" in names
    assert f"bundle.sha256.{CALIBRATION_FILE}" not in names


def test_a_wrong_key_is_found(certificate: Path, bundle: Path) -> None:
    cwd = certificate.parents[2]
    run(cwd, "certify", "--new-key", "other")
    done = run(cwd, "verify", certificate, "--bundle", bundle, "--public-key", "other.pub")
    assert done.returncode == 1
    assert done.stdout.startswith("signature: by the key")


def test_the_signature_of_another_key_is_found(certificate: Path, bundle: Path) -> None:
    cwd = certificate.parents[2]
    run(cwd, "certify", "--new-key", "other")
    other = read_certificate(certified(cwd, bundle, "--key", "other", "--output", "other-out"))
    mine = read_certificate(certificate)
    assert mine.signature is not None
    assert other.signature is not None
    mixed = mine.signature.model_copy(update={"signature": other.signature.signature})
    certificate.write_bytes(mine.model_copy(update={"signature": mixed}).to_bytes())
    done = run(cwd, "verify", certificate, "--bundle", bundle)
    assert done.returncode == 1
    assert done.stdout == "signature: it is not one of this content by the key beside it\n"


def test_an_unsigned_certificate_says_so(tmp_path: Path, bundle: Path) -> None:
    certificate = certified(tmp_path, bundle)
    assert "Not signed." in certificate.with_name("certificate.html").read_text("utf-8")
    done = run(tmp_path, "verify", certificate, "--bundle", bundle)
    assert done.returncode == 0
    assert "not signed" in done.stdout
    run(tmp_path, "certify", "--new-key", "key")
    done = run(tmp_path, "verify", certificate, "--bundle", bundle, "--public-key", "key.pub")
    assert done.returncode == 1


def test_the_same_bundle_and_day_give_the_same_bytes(certificate: Path, bundle: Path) -> None:
    cwd = certificate.parents[2]
    again = certified(cwd, bundle, "--key", "key", "--output", "again")
    for name in ("certificate.json", "certificate.html"):
        assert again.with_name(name).read_bytes() == certificate.with_name(name).read_bytes()


def test_a_file_written_in_another_way_is_refused(certificate: Path, bundle: Path) -> None:
    text = certificate.read_text("utf-8")
    certificate.write_text(text.replace('"delta": 0.1', '"delta": 0.5,\n  "delta": 0.1'))
    done = run(certificate.parent, "verify", certificate, "--bundle", bundle)
    assert done.returncode == 1
    assert "written in another way" in " ".join(done.stderr.split())


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
        "No query can be flagged as an outlier at a rate of 0.05",
        "made-up views of gallery items",
    ):
        assert words in sentences
    page = certificate.with_name("certificate.html").read_text("utf-8")
    assert "No match is given. An error of at most 0.05" in page


def test_the_page_needs_nothing_else(certificate: Path) -> None:
    page = certificate.with_name("certificate.html").read_text("utf-8")
    told = said(certificate)
    assert "coins &lt;rare&gt;" in page
    assert "<script" not in page
    assert "http" not in page
    bound = told["promises"][0]["matches"][0]["foretold"]["error_bound"]
    assert f"<td>{100 * bound:.1f} %</td>" in page
    assert page.count('class="dot"') == len(told["measured"]["cross_fitted"]["reliability"])
    for sentence in told["not_promised"] + told["valid_while"]:
        assert sentence in page


def test_what_happened_since(certificate: Path, bundle: Path) -> None:
    cwd, log = certificate.parents[2], FeedbackLog(certificate.parent / "feedback.sqlite")
    log.ask(bundle.name, [(f"q{n:02}", "coin") for n in range(30)])
    for n in range(20):
        log.record(Feedback("coins", bundle.name, f"q{n:02}", "coin", n % 2 == 0, 1, 0.9, 2.2, "f"))
    test = DriftTest(calibration().outlier_scores.tolist())
    for _ in range(60):
        test.observe(4.0)
    DriftStates(log.path).save(bundle.name, SavedDrift(test.state(), np.zeros(0, np.uint64)))

    with_feedback = certified(cwd, bundle, "--key", "key", "--feedback", log.path)
    told = said(with_feedback)["since"]
    assert told["observed"]["n_asked"] == 30
    assert told["observed"]["reviews"] == "01" * 10
    assert told["observed"]["said"] == {"n": 20, "probability": pytest.approx(0.9), "share": 0.5}
    assert told["observed"]["drift"] == {
        "n_served": test.n_served,
        "log_capital": test.log_capital,
        "alarmed": True,
    }
    assert told["errors"]["alarmed"]
    assert told["errors"]["share"] == 0.5
    assert told["errors"]["course"][-1]["n"] == 20
    assert "the promises have ended" in with_feedback.with_name("certificate.html").read_text()
    assert run(cwd, "verify", with_feedback, "--bundle", bundle).returncode == 0

    forged(with_feedback, lambda told: told["since"]["errors"].update(n_wrong=1))
    lines = run(cwd, "verify", with_feedback, "--bundle", bundle).stdout.splitlines()
    assert lines[1:] == ["since.errors.n_wrong: the certificate says 1, the bundle gives 10"]


def test_errors_since_are_those_of_the_running_test() -> None:
    seen = Observed(
        n_asked=50, reviews="0" * 37 + "1", said=Said(n=1, probability=0.5, share=1.0), drift=None
    )
    told, test = since(seen, 0.05)["errors"], ErrorTest(0.05)
    for wrong in seen.reviews:
        test.observe(wrong=wrong == "1")
    assert told["log_evidence"] == test.log_evidence
    assert told["interval"] == list(error_interval(38, 1))
    assert len(told["course"]) == 12
    assert told["course"][-1] == {"n": 38, "n_wrong": 1, "log_evidence": test.log_evidence}


def test_a_private_key_is_its_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    assert run(tmp_path, "certify", "--new-key", "key").returncode == 0
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    before = (tmp_path / "key").read_bytes()
    assert run(tmp_path, "certify", "--new-key", "key").returncode == 1
    assert (tmp_path / "key").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--key", "key.pub"], "no private key"),
        (["--feedback", "nowhere"], "no feedback in nowhere"),
        (["--feedback", "key"], "no file of feedback"),
        (["--date", "yesterday"], "wanted a day"),
        (["--output", "bundles/{id}/inside"], "lies in the bundle"),
    ],
)
def test_what_cannot_be_used_is_refused(
    certificate: Path, bundle: Path, options: list[str], message: str
) -> None:
    cwd = certificate.parents[2]
    given = [option.format(id=bundle.name) for option in options]
    done = run(cwd, "certify", bundle, *given)
    assert done.returncode == 1
    assert message in " ".join(done.stderr.split())


def test_a_bundle_without_calibration_has_nothing_to_certify(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    (staging / "encoder.onnx").write_bytes(b"weights")
    bare = publish(staging, Manifest({}, {}, None, None, (), {}), tmp_path / "bundles")
    done = run(tmp_path, "certify", bare)
    assert done.returncode == 1
    assert "is not calibrated and promises nothing" in " ".join(done.stderr.split())


def test_neither_command_needs_torch(certificate: Path, bundle: Path) -> None:
    script = (
        "import sys\n"
        "from index_builder.__main__ import app\n"
        "app(standalone_mode=False)\n"
        "assert 'sklearn' in sys.modules and 'torch' not in sys.modules\n"
    )
    vouch = [sys.executable, "-c", script]
    copy = shutil.copy(certificate, certificate.with_name("kept.json"))
    for arguments in (
        ["certify", str(bundle), "--date", DAY, "--output", str(certificate.parent)],
        ["verify", str(copy), "--bundle", str(bundle)],
    ):
        subprocess.run([*vouch, *arguments], check=True, capture_output=True, timeout=120)
