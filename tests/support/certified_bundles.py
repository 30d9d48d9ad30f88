"""Certificates of a bundle whose calibration is made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from index_builder.certificates.verification import read_certificate
from model_store.bundles.manifest import Manifest
from model_store.bundles.publish import publish
from model_store.decision import (
    SIGNALS,
    Calibration,
    Evidence,
    LabelMeans,
    MatchModel,
    OutlierDetector,
    Recalibration,
)
from tests.support.build_command import Done, vouch_build
from tests.support.calibration_evidence import evidence

DAY = "2026-11-22"

EVIDENCE = evidence(
    300,
    200,
    correct=(np.arange(500) < 300) & (np.arange(500) % 100 > 0),
    sources=np.arange(500) % 2,
    source_names=["phone", "scanner"],
)


def calibration(of: Evidence = EVIDENCE, **changes: Any) -> Calibration:
    n_signals = len(SIGNALS)
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
        "order": "similarity",
        "similarity_stds": np.arange(300) / 300,
        "outlier_scores": np.sort(np.random.default_rng(0).standard_normal(300)),
        "absent_outlier_scores": np.sort(np.random.default_rng(1).normal(2, 1, 200)),
        "means": LabelMeans(np.eye(3, 2, dtype=np.float32)),
        "label_classes": np.full(3, 2, dtype=np.int8),
        "n_labels": np.array([0, 0, 3]),
        "detector": OutlierDetector(
            n_averaged=1,
            centre=np.ones(3, np.float32),
            basis=np.ones((3, 2), np.float32),
            references=np.ones((4, 2), np.float32),
            label_means=np.ones((3, 2), np.float32),
            whitening=np.ones((2, 2), np.float32),
            residual_variance=0.5,
            directions=np.ones((4, 4), np.float32),
        ),
        "match": MatchModel(np.zeros(n_signals), np.zeros(n_signals), np.ones(n_signals), 0.0),
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
    return publish(
        staging, Manifest(gallery, {"fingerprint": "f"}, {}, metrics, (), {}), root / "bundles"
    )


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
