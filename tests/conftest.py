"""What all tests share: a real bundle, built once, and the place of the real data."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from index_builder.configuration.build import BuildConfig, load_config
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import build_all
from model_store.bundles.manifest import MANIFEST_FILE, Manifest, SampleQuery
from model_store.bundles.publish import publish
from model_store.decision.calibration import ARRAYS_FILE, CALIBRATION_FILE


@pytest.fixture(scope="session")
def digits_config() -> BuildConfig:
    """The demo's configuration, trained for less long.

    Its owner names the share of absent queries: an estimate would change answers as queries come.
    """
    config = load_config("digits")
    short = config.training.model_copy(update={"epochs": 3})
    share = config.calibration.model_copy(update={"expected_absent": 0.05})
    return config.model_copy(update={"training": short, "calibration": share})


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory behind `digits_bundle`: checkpoint and posterior."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="session")
def digits_bundle(
    digits_config: BuildConfig, digits_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A published bundle of scikit-learn's digits. Copy it before damaging it."""
    bundle, _ = build_all(digits_config, Run(digits_run), tmp_path_factory.mktemp("bundles"))
    return bundle


@pytest.fixture(scope="session")
def uncalibrated_bundle(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same gallery without a decision layer."""
    staging = tmp_path_factory.mktemp("uncalibrated") / "staging"
    shutil.copytree(digits_bundle, staging)
    fields = json.loads((staging / MANIFEST_FILE).read_text(encoding="utf-8"))
    for name in (CALIBRATION_FILE, ARRAYS_FILE, MANIFEST_FILE):
        (staging / name).unlink()
    for name in ("id", "files", "schema_version"):
        del fields[name]
    samples = tuple(SampleQuery(**sample) for sample in fields.pop("samples"))
    manifest = Manifest(samples=samples, **{**fields, "calibration": None, "metrics": None})
    return publish(staging, manifest, staging.parent / "published")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data; a test that needs it is skipped where there is none."""
    configured = os.environ.get("VOUCH_DATA_DIR")
    if not configured:
        pytest.skip("VOUCH_DATA_DIR is not set: the real data is not here")
    return Path(configured)
