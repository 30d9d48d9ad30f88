"""Measure methods × seeds, with wall time and peak memory.

A cell is one method with one seed; finished cells are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import faiss
import torch

from index_builder.child_processes import children_unreached, end_silently, end_with_parent
from index_builder.pipeline.run import Run, write_json
from index_builder.pipeline.steps import export_step, fit_step, train_step
from index_builder.progress import console
from index_builder.reproduction.evaluate import Evaluation, evaluate_decision, evaluate_method
from index_builder.reproduction.methods import METHODS, configured
from index_builder.reproduction.protocols import ProtocolConfig, load_protocol
from model_store.errors import BuildError, ConfigError
from model_store.files import lock_between_processes, replacing
from model_store.installation import DISTRIBUTION, installed_versions
from model_store.machine import usable_processors

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"
"""Writing this value to clear_refs resets the peak memory of the process, see proc(5)."""

_LIBRARIES = (DISTRIBUTION, "torch", "torchvision", "numpy", "scikit-learn", "faiss-cpu")


@dataclass(slots=True)
class Cost:
    """The cost of a stage, such as the training.

    Attributes
    ----------
    seconds : wall time.
    peak_bytes : peak memory of the process, including memory that was allocated before the stage.
    peak_gpu_bytes : peak GPU memory of torch; None without a GPU.
    """

    seconds: float = 0.0
    peak_bytes: int = 0
    peak_gpu_bytes: int | None = None


@contextlib.contextmanager
def measured() -> Iterator[Cost]:
    """Measure the cost of the code in a ``with`` block; the end of the block sets the values."""
    cost = Cost()
    with contextlib.suppress(OSError):  # without this reset, the peak counts from the process start
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    yield cost
    cost.seconds = time.perf_counter() - started
    cost.peak_bytes = _peak_bytes()
    if torch.cuda.is_available():
        cost.peak_gpu_bytes = torch.cuda.max_memory_allocated()


def _peak_bytes() -> int:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine() -> dict[str, Any]:
    """Describe the machine and the versions of the numeric libraries."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": installed_versions(_LIBRARIES),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


DECISION = "vouch"
"""Name of the decision layer in a list of methods."""

DECISION_TITLE = "Vouch's decision layer"

BASE_METHOD = "lam_posthoc_fixed"
"""The method whose encoder the decision layer uses."""

TRAINED_METHOD = "deterministic"
"""All post-hoc methods use the encoder that this method trains."""

Cell = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FailedCell:
    """A cell that could not be measured, and the reason."""

    method: str
    seed: int
    reason: str


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """The experiments to run.

    Attributes
    ----------
    base : configuration of the protocol; the seed in this configuration is ignored.
    methods : names in `METHODS`, or `DECISION`.
    seeds : a seed determines the training and which images are held out.
    directory : the output folder.
    """

    base: ProtocolConfig
    methods: Sequence[str]
    seeds: Sequence[int]
    directory: Path

    def config(self, method: str, seed: int) -> ProtocolConfig:
        """Return the configuration of a cell."""
        base = self.base.model_copy(update={"seed": seed})
        name = BASE_METHOD if method == DECISION else method
        return configured(base, name, self.shared_encoder(seed).checkpoint)

    def shared_encoder(self, seed: int) -> Run:
        """Return the run whose encoder all post-hoc methods use; each seed has one such run."""
        return Run(self.directory / "encoders" / f"seed-{seed}")

    def run(self, method: str, seed: int) -> Run:
        """Return the run of a cell; the decision layer uses the run of `BASE_METHOD`."""
        name = BASE_METHOD if method == DECISION else method
        return Run(self.directory / "runs" / name / f"seed-{seed}")

    def cell(self, method: str, seed: int) -> Path:
        """Return the path of the file with the results of a cell."""
        return self.directory / "cells" / method / f"seed-{seed}.json"


def methods_named(wanted: str) -> list[str]:
    """Return the names of the methods in ``wanted``; the last name is always the decision layer.

    Parameters
    ----------
    wanted : names of methods, separated by commas; or ``all``.

    Raises
    ------
    ConfigError : a name is not in `METHODS`.
    """
    names = [*METHODS, DECISION]
    if wanted == "all":
        return names
    chosen = chosen_names(wanted, names, "method")
    return chosen if DECISION in chosen else [*chosen, DECISION]


def chosen_names(wanted: str, known: Collection[str], kind: str) -> list[str]:
    """Return the names in a comma-separated list, in the order of ``known``.

    Raises
    ------
    ConfigError : a name is not in ``known``.
    """
    chosen = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise ConfigError(f"No {kind} {', '.join(unknown)!r}. There are: {', '.join(known)}.")
    return [name for name in known if name in chosen]


def title_of(method: str) -> str:
    """Return the title of a method for tables."""
    return DECISION_TITLE if method == DECISION else METHODS[method].title


def run_cells(plan: ExperimentPlan, jobs: int = 1) -> tuple[list[Cell], list[FailedCell]]:
    """Measure all missing cells, seed by seed; a failed cell does not stop the measurement.

    Parameters
    ----------
    jobs : number of cells that are measured concurrently, each in a process. Concurrent cells
        compete for the processors, which increases their measured costs.

    Returns
    -------
    All measured cells, and the failures.

    Raises
    ------
    ConfigError : the directory has cells that were measured with other settings.
    """
    _require_same_settings(plan)
    everything = [(method, seed) for seed in plan.seeds for method in plan.methods]
    missing = [cell for cell in everything if not plan.cell(*cell).exists()]
    outcomes = (
        (_measure(plan, *cell) for cell in missing)
        if jobs == 1
        else _side_by_side(plan, missing, jobs)
    )
    failures = []
    for done, (method, seed, reason) in enumerate(outcomes, 1):
        if reason is not None:
            failures.append(FailedCell(method, seed, reason))
        console.print(
            f"[bold]{title_of(method)}[/bold], seed {seed} ({done} of {len(missing)})"
            + ("" if reason is None else f": [red]failed[/red]. {reason}")
        )
    measured_ones = [plan.cell(*cell) for cell in everything if plan.cell(*cell).exists()]
    return [json.loads(path.read_text(encoding="utf-8")) for path in measured_ones], failures


Outcome = tuple[str, int, str | None]
"""Method, seed and failure reason of a cell; the reason is None if the cell was measured."""


def _side_by_side(
    plan: ExperimentPlan, cells: Sequence[tuple[str, int]], jobs: int
) -> Iterator[Outcome]:
    """Yield an outcome when a cell finishes. After an unexpected error, start no further cell."""
    threads = max(1, usable_processors() // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _prepare_process, (threads,)) as pool:
        try:
            with children_unreached():
                measured = [pool.submit(_measure, plan, *cell) for cell in cells]
            for finished in as_completed(measured):
                yield finished.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare_process(threads: int) -> None:
    """Limit the threads of a child process, and switch off its output."""
    end_silently()
    end_with_parent()
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    console.quiet = True


def _measure(plan: ExperimentPlan, method: str, seed: int) -> Outcome:
    try:
        if not plan.cell(method, seed).exists():  # another command may have measured the cell
            write_cell(plan.cell(method, seed), _measured_cell(plan, method, seed))
    except BuildError as error:
        return method, seed, str(error)
    return method, seed, None


@contextmanager
def _alone_in(run: Run) -> Iterator[None]:
    """Lock ``run``, because other processes may need the same encoder."""
    run.directory.mkdir(parents=True, exist_ok=True)
    with lock_between_processes(run.directory / "lock"):
        yield


def _measured_cell(plan: ExperimentPlan, method: str, seed: int) -> Cell:
    config, run = plan.config(method, seed), plan.run(method, seed)
    with _alone_in(run):
        costs = _built(plan, method, config, run)
    data = load_protocol(config)
    with measured() as cost:
        evaluation: Evaluation
        if method == DECISION:
            galleries = run.directory / "galleries"
            with _alone_in(run):
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
        "n_development": len(data.development.queries),
        "outliers": {
            name: {"kind": one.kind, "n": len(one.images)}
            for name, one in data.test_outliers.items()
        },
        "main_outliers": next(iter(data.test_outliers)),
        "partial": dict(data.partial),
        "costs": costs,
        "machine": machine(),
        **evaluation,
    }


def _built(plan: ExperimentPlan, method: str, config: ProtocolConfig, run: Run) -> dict[str, Any]:
    """Train, fit and export an encoder unless it already exists; return the costs."""
    costs_file = run.directory / "costs.json"
    if costs_file.exists():
        return dict(json.loads(costs_file.read_text(encoding="utf-8")))
    training = None
    post_hoc = METHODS[BASE_METHOD if method == DECISION else method].post_hoc
    if post_hoc:
        training = _shared_training(plan, config.seed)
    splits = load_protocol(config).splits()
    with measured() as own_training:
        train_step(config, run, splits)
    with measured() as fit:
        fit_step(config, run, splits)
    export_step(config, run, splits)
    costs = {
        "training": asdict(own_training) if training is None else training,
        "fit": asdict(fit),
    }
    write_cell(costs_file, costs)
    return costs


def _shared_training(plan: ExperimentPlan, seed: int) -> dict[str, Any]:
    """Train the encoder of all post-hoc methods if it is not trained; return the cost."""
    run = plan.shared_encoder(seed)
    costs_file = run.directory / "costs.json"
    with _alone_in(run):
        if not costs_file.exists():
            base = plan.base.model_copy(update={"seed": seed})
            config = configured(base, TRAINED_METHOD)
            splits = load_protocol(config).splits()
            with measured() as cost:
                train_step(config, run, splits)
            write_cell(costs_file, {**asdict(cost), "shared": True})
    return dict(json.loads(costs_file.read_text(encoding="utf-8")))


def _require_same_settings(plan: ExperimentPlan) -> None:
    path = plan.directory / "plan.json"
    settings = plan.base.model_dump(mode="json", exclude={"seed"})
    if not path.exists():
        write_cell(path, settings)
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    changed = sorted(plan.base.changed_since({**before, "seed": plan.base.seed}))
    if changed:
        raise ConfigError(
            f"{plan.directory} has measurements with other values of `{'`, `'.join(changed)}`. Set "
            "another --out directory, or use the same values."
        )


def write_cell(path: Path, content: Cell) -> None:
    """Write the cell to a temporary file and rename it; an interrupted cell leaves no result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        write_json(unfinished, content)
