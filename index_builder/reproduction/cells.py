"""Methods × seeds: each cell is trained, fitted, exported and measured once, whatever happens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from index_builder.configuration import BuildConfig
from index_builder.methods import METHODS, configured
from index_builder.progress import console
from index_builder.protocols import load_protocol
from index_builder.reproduction.evaluate import (
    Evaluation,
    evaluate_decision,
    evaluate_method,
)
from index_builder.reproduction.resources import measured
from index_builder.run import Run, write_json
from index_builder.steps import export_step, fit_step, train_step
from model_store.errors import ConfigError

DECISION = "vouch"
"""Name of the decision layer among the methods."""

DECISION_TITLE = "Vouch's decision layer"

BASE_METHOD = "lam_posthoc_fixed"
"""The method that the decision layer is on."""

TRAINED_METHOD = "deterministic"
"""The method whose encoder all post-hoc methods share."""

Cell = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured.

    Attributes
    ----------
    base : configuration of the protocol, with any seed.
    methods : names of `METHODS`, or `DECISION`.
    seeds : of the training and of what is held out.
    directory : of everything that is written.
    """

    base: BuildConfig
    methods: Sequence[str]
    seeds: Sequence[int]
    directory: Path

    def config(self, method: str, seed: int) -> BuildConfig:
        """Configuration of a cell."""
        base = self.base.model_copy(update={"seed": seed})
        name = BASE_METHOD if method == DECISION else method
        return configured(base, name, self.shared_encoder(seed).checkpoint)

    def shared_encoder(self, seed: int) -> Run:
        """Where the encoder of all post-hoc methods lies."""
        return Run(self.directory / "encoders" / f"seed-{seed}")

    def run(self, method: str, seed: int) -> Run:
        """Where a cell's files lie; the decision layer is on those of its method."""
        name = BASE_METHOD if method == DECISION else method
        return Run(self.directory / "runs" / name / f"seed-{seed}")

    def cell(self, method: str, seed: int) -> Path:
        """The file that a finished cell leaves."""
        return self.directory / "cells" / method / f"seed-{seed}.json"


def methods_named(wanted: str) -> list[str]:
    """Names of methods from a comma-separated list, or ``all``; the decision layer is the last.

    Raises
    ------
    ConfigError : one that there is none of.
    """
    names = [*METHODS, DECISION]
    if wanted == "all":
        return names
    chosen = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in names]
    if unknown or not chosen:
        raise ConfigError(f"No method {', '.join(unknown)!r}. There are: {', '.join(names)}.")
    return [name for name in names if name in {*chosen, DECISION}]


def title_of(method: str) -> str:
    """For a table."""
    return DECISION_TITLE if method == DECISION else METHODS[method].title


def run_cells(plan: Plan) -> Iterator[Cell]:
    """Measure what is not yet measured, seed by seed, and give every cell.

    Raises
    ------
    ConfigError : the directory holds cells of other settings.
    """
    _require_same_settings(plan)
    total = len(plan.seeds) * len(plan.methods)
    done = 0
    for seed in plan.seeds:
        for method in plan.methods:
            done += 1
            path = plan.cell(method, seed)
            if not path.exists():
                console.print(f"[bold]{title_of(method)}[/bold], seed {seed} ({done} of {total})")
                _write(path, _measured_cell(plan, method, seed))
            yield json.loads(path.read_text(encoding="utf-8"))


def _measured_cell(plan: Plan, method: str, seed: int) -> Cell:
    config, run = plan.config(method, seed), plan.run(method, seed)
    costs = _built(plan, method, config, run)
    data = load_protocol(config)
    with measured() as cost:
        evaluation: Evaluation
        if method == DECISION:
            galleries = run.directory / "galleries"
            evaluation = evaluate_decision(config, run, data, galleries)
            shutil.rmtree(galleries)
        else:
            evaluation = evaluate_method(config, run, data)
    costs["evaluation"] = asdict(cost)
    return {
        "method": method,
        "title": title_of(method),
        "seed": seed,
        "n_queries": len(data.test.queries),
        "n_gallery": len(data.test.gallery),
        "n_training": len(data.training),
        "n_rehearsal": len(data.rehearsal.queries),
        "outliers": {
            name: {"kind": one.kind, "n": len(one.images)}
            for name, one in data.test_outliers.items()
        },
        "main_outliers": next(iter(data.test_outliers)),
        "partial": dict(data.partial),
        "costs": costs,
        **evaluation,
    }


def _built(plan: Plan, method: str, config: BuildConfig, run: Run) -> dict[str, Any]:
    """Train, fit and export, once; the cost of each, as it was when it was done."""
    costs_file = run.directory / "costs.json"
    if costs_file.exists():
        return dict(json.loads(costs_file.read_text(encoding="utf-8")))
    training = None
    post_hoc = METHODS[BASE_METHOD if method == DECISION else method].post_hoc
    if post_hoc:
        training = _shared_training(plan, config.seed)
    with measured() as own_training:
        train_step(config, run)
    with measured() as fit:
        fit_step(config, run)
    export_step(config, run)
    costs = {
        "training": asdict(own_training) if training is None else training,
        "fit": asdict(fit),
    }
    _write(costs_file, costs)
    return costs


def _shared_training(plan: Plan, seed: int) -> dict[str, Any]:
    """Train the encoder that post-hoc methods share; what that cost."""
    run = plan.shared_encoder(seed)
    costs_file = run.directory / "costs.json"
    if not costs_file.exists():
        base = plan.base.model_copy(update={"seed": seed})
        with measured() as cost:
            train_step(configured(base, TRAINED_METHOD), run)
        _write(costs_file, {**asdict(cost), "shared": True})
    return dict(json.loads(costs_file.read_text(encoding="utf-8")))


def _require_same_settings(plan: Plan) -> None:
    path = plan.directory / "plan.json"
    settings = plan.base.model_dump(mode="json", exclude={"seed"})
    if not path.exists():
        _write(path, settings)
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = [part for part in settings if settings[part] != before.get(part)]
    if changed:
        raise ConfigError(
            f"{plan.directory} holds measurements with another `{'`, `'.join(changed)}`. Name "
            "another --out, or ask for the settings that they were made with."
        )


def _write(path: Path, content: Cell) -> None:
    """By one rename, so that an interrupted cell leaves nothing that looks finished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    write_json(partial, content)
    partial.replace(path)
