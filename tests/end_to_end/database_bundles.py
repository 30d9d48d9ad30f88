"""Bundles with their gallery in a database, made by the command line from a run that is there."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from index_builder.commands.app import app
from index_builder.configuration.build import BuildConfig
from index_builder.datasets.splits import Splits
from index_builder.pipeline.build import splits_of

N_EVALUATED = 40
"""Queries of each kind: a database takes 5 ms or more to answer one, and the step asks 2,000."""


def bundles_in_database(
    run: Path, place: Path, database: Sequence[str], given: Mapping[str, str]
) -> Path:
    """Return bundles in ``place`` of a copy of ``run``; ``database`` are options of `index`."""
    shutil.copytree(run, place / "run")
    options = ["--config", "digits", "--run", str(place / "run")]
    with pytest.MonkeyPatch.context() as patched:
        for step, more in [
            ("index", database),
            ("calibrate", []),
            ("evaluate", []),
            ("publish", ["--bundles", str(place / "bundles")]),
        ]:
            if step == "evaluate":
                patched.setattr("index_builder.pipeline.build.splits_of", _few_of)
            done = CliRunner().invoke(app, [step, *options, *more], env=given)
            assert done.exit_code == 0, done.output
    return place / "bundles"


def _few_of(config: BuildConfig) -> Splits:
    """Return the data of a build, with fewer queries for the evaluation."""
    splits = splits_of(config)
    few = {
        name: images.at(np.linspace(0, len(images) - 1, N_EVALUATED).astype(int))
        for name in ("matched", "withheld", "outliers")
        if (images := getattr(splits.evaluation, name)) is not None
    }
    return replace(splits, evaluation=replace(splits.evaluation, **few))
