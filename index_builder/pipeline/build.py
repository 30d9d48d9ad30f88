"""All steps of a build in order, and the choice between steps with and without torch."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.requirements import Check, accept_any
from index_builder.pipeline.closed_form import is_closed_form
from index_builder.pipeline.gallery_steps import (
    calibrate_step,
    evaluate_step,
    index_step,
    planned,
    publish_step,
    read_samples,
    splits_of,
)
from index_builder.pipeline.run import Run
from index_builder.progress import timed_step
from model_store.bundles.manifest import EVALUATION_FILE
from model_store.decision import Calibration, outcome_of

__all__ = ["build_all", "steps_for"]


def steps_for(config: EncoderConfig) -> ModuleType:
    """Return the module with the functions `train_step`, `fit_step` and `export_step`.

    torch is imported only for an encoder that needs it.
    """
    name = "closed_form" if is_closed_form(config) else "steps"
    return import_module(f"{__package__}.{name}")


def build_all(
    config: BuildConfig, run: Run, bundles: Path, check: Check = accept_any
) -> tuple[Path, dict[str, Any]]:
    """Run all steps in order; the staging directory is emptied first.

    Parameters
    ----------
    check : see `Check`.
    """
    splits = splits_of(config)
    planned(splits, config).require_feasible()
    read_samples(config.samples, splits)
    shutil.rmtree(run.staging, ignore_errors=True)
    of_encoder = steps_for(config)
    steps: Mapping[str, Callable[[], object]] = {
        "train": lambda: of_encoder.train_step(config, run, splits),
        "fit": lambda: of_encoder.fit_step(config, run, splits),
        "export": lambda: of_encoder.export_step(config, run, splits),
        "index": lambda: index_step(config, run),
        "calibrate": lambda: calibrate_step(config, run),
        "evaluate": lambda: evaluate_step(config, run),
    }
    for number, (name, step) in enumerate(steps.items(), start=1):
        with timed_step(f"{name} ({number} of {len(steps)})"):
            step()
    report = run.read_json(EVALUATION_FILE)
    check(outcome_of(Calibration.load(run.staging), report))
    return publish_step(config, run, bundles), report
