"""Steps that are run again, or end early: what later steps then take for finished."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from index_builder.configuration.build import BuildConfig
from index_builder.pipeline.build import (
    calibrate_step,
    evaluate_step,
    index_step,
    publish_step,
    splits_of,
)
from index_builder.pipeline.run import Run
from index_builder.pipeline.steps import export_step, fit_step, train_step
from model_store.bundles.manifest import EVALUATION_FILE
from model_store.decision.calibration import CALIBRATION_FILE
from model_store.errors import OutputError, StepNotReady

pytestmark = pytest.mark.bundle


@pytest.fixture
def run(digits_run: Path, tmp_path: Path) -> Run:
    return Run(Path(shutil.copytree(digits_run, tmp_path / "run")))


def shorter(config: BuildConfig) -> BuildConfig:
    """The same with another encoder."""
    training = {**config.training.model_dump(), "epochs": 1}
    return BuildConfig.model_validate({**config.model_dump(), "training": training})


def test_an_encoder_that_was_half_written_is_none_that_was_trained_before(
    run: Run, digits_config: BuildConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("index_builder.pipeline.steps.save_file", killed)
    with pytest.raises(KeyboardInterrupt):
        train_step(shorter(digits_config), run, splits_of(digits_config))
    with pytest.raises(StepNotReady, match="`vouch-build train` first"):
        fit_step(digits_config, run, splits_of(digits_config))


def test_a_posterior_is_that_of_the_encoder_trained_last(
    run: Run, digits_config: BuildConfig
) -> None:
    config = shorter(digits_config)
    train_step(config, run, splits_of(config))
    with pytest.raises(StepNotReady, match="`vouch-build fit` first"):
        export_step(config, run, splits_of(config))


def test_a_bundle_is_evaluated_as_it_is_calibrated(
    run: Run, digits_config: BuildConfig, tmp_path: Path
) -> None:
    calibrate_step(digits_config, run)
    with pytest.raises(StepNotReady, match="`vouch-build evaluate` first"):
        publish_step(digits_config, run, tmp_path / "bundles")


def test_a_bundle_is_calibrated_as_it_is_indexed(run: Run, digits_config: BuildConfig) -> None:
    index_step(digits_config, run)
    with pytest.raises(StepNotReady, match="`vouch-build calibrate` first"):
        evaluate_step(digits_config, run)


@pytest.mark.parametrize(
    ("step", "file"), [(calibrate_step, CALIBRATION_FILE), (evaluate_step, EVALUATION_FILE)]
)
def test_what_a_full_disk_cut_off_is_not_published(
    run: Run,
    digits_config: BuildConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[BuildConfig, Run], object],
    file: str,
) -> None:
    write_text = Path.write_text
    (run.staging / EVALUATION_FILE).unlink()

    def full(path: Path, text: str, **options: Any) -> int:
        write_text(path, text[:50] if file in path.name else text, **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            step(digits_config, run)
    with pytest.raises(StepNotReady):
        publish_step(digits_config, run, tmp_path / "bundles")
    assert file == EVALUATION_FILE or not (run.staging / file).exists()


def test_a_run_that_is_only_read_may_lie_where_nobody_can_write(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("index_builder.indexing.workdir.lock_between_processes", refuse)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(OutputError, match="Read-only file system"), run.occupied():
        pass
    with run.occupied(to_write=False):
        pass
