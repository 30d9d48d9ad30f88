"""What `vouch-build verify` finds."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index_builder.certificates.content import SCHEMA_VERSION
from index_builder.certificates.verification import (
    Certificate,
    differences,
    read_certificate,
    write_certificate,
)
from model_store.bundles.signatures import read_private_key
from model_store.decision.calibration import ARRAYS_FILE, CALIBRATION_FILE
from model_store.errors import CertificateError
from tests.support.bundle_copies import flip_a_byte
from tests.support.certified_bundles import (
    EVIDENCE,
    calibration,
    certified,
    forged,
    published,
    run,
    said,
)


def test_a_certificate_holds_for_its_bundle(certificate: Path, bundle: Path) -> None:
    cwd = certificate.parents[2]
    assert certificate == cwd / "certificates" / bundle.name / "certificate.json"
    done = run(cwd, "verify", certificate, "--bundle", bundle.parent, "--public-key", "key.pub")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every number is confirmed; signed by the required key" in done.stdout


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("delta",), 0.01),
        (("promises", 0, "matches", 0, "foretold", "error_bound"), 0.001),
        (("promises", 1, "result_sets", 2, "promised_for"), ["few", "many"]),
        (("population", "absent", "n_independent"), 200),
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
        "outlier_flag.can_flag: the certificate lacks this field",
        "population.n_experts: only the certificate has this field",
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
    assert (
        done.stdout
        == "signature: it does not fit the content and the public key in the certificate\n"
    )


def test_an_unsigned_certificate_says_so(tmp_path: Path, bundle: Path) -> None:
    certificate = certified(tmp_path, bundle)
    assert "Not signed." in certificate.with_name("certificate.html").read_text("utf-8")
    done = run(tmp_path, "verify", certificate, "--bundle", bundle)
    assert done.returncode == 0
    assert "not signed" in done.stdout
    run(tmp_path, "certify", "--new-key", "key")
    done = run(tmp_path, "verify", certificate, "--bundle", bundle, "--public-key", "key.pub")
    assert done.returncode == 1


def test_a_file_written_in_another_way_is_refused(certificate: Path, bundle: Path) -> None:
    text = certificate.read_text("utf-8")
    certificate.write_text(text.replace('"delta": 0.1', '"delta": 0.5,\n  "delta": 0.1'))
    done = run(certificate.parent, "verify", certificate, "--bundle", bundle)
    assert done.returncode == 1
    assert "its layout differs" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "it is not a JSON object"),
        ('{"content": {}}', "`signature` is missing"),
        ('{"content": 1, "signature": null}', "`content` is not valid"),
        ('{"content": {}, "signature": null, "x": 1}', "`x` is not a field of a certificate"),
        ('{"content": {}, "signature": {"algorithm": "RSA"}}', "`signature.algorithm` is not v"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        ("no JSON", "Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_a_damaged_certificate_is_explained_in_one_line(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "certificate.json"
    path.write_text(text)
    with pytest.raises(CertificateError) as refused:
        read_certificate(path)
    assert str(refused.value).startswith(f"{path} is not a certificate: {said}")
    assert "\n" not in str(refused.value)


def test_a_damaged_report_of_reviews_is_explained_in_one_line(tmp_path: Path) -> None:
    claimed = {"schema_version": SCHEMA_VERSION, "date": "2026-01-31", "since": {"observed": {}}}
    damaged = Certificate(content=claimed, signature=None)
    [line] = differences(damaged, tmp_path, None)
    assert line.startswith("date or since: not readable (`")
    assert "\n" not in line


def test_a_private_key_is_its_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    assert run(tmp_path, "certify", "--new-key", "key").returncode == 0
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    before = (tmp_path / "key").read_bytes()
    assert run(tmp_path, "certify", "--new-key", "key").returncode == 1
    assert (tmp_path / "key").read_bytes() == before
