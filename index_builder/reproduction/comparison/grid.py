"""Measure data sets × seeds × objectives. A cell is one encoder; finished cells are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index_builder.configuration.objective import OF_VIEWS
from index_builder.objectives.registry import OBJECTIVES
from index_builder.pipeline.run import Run
from index_builder.progress import console
from index_builder.reproduction.cells import write_cell
from index_builder.reproduction.comparison.measure import PRIORS, Cell, measure_encoder
from index_builder.reproduction.comparison.table import markdown, summary_of, write_page
from index_builder.reproduction.protocols import ProtocolConfig, protocol_config
from index_builder.reproduction.summary import publish
from model_store.errors import BuildError, ConfigError

DATA_SETS = ("caltech-101", "fashion-mnist-tiny", "omniglot-small")
"""Names of protocols; the quickest protocol is first."""

OF_PRIORS = ("contrastive", "multi_similarity", "cross_entropy", "proxy_anchor")
"""One objective of each kind. Encoders trained with these objectives are used to compare the ways
to choose a prior."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells to measure.

    Attributes
    ----------
    objectives : names in `OBJECTIVES`.
    seeds : a seed determines the training and which images are held out.
    directory : the output folder.
    options : arguments of `protocol_config` for all data sets.
    data_sets : names in `PROTOCOLS`.
    weights : weights of the pretrained trunk; if None, torchvision's weights are used.
    """

    objectives: Sequence[str]
    seeds: Sequence[int]
    directory: Path
    options: Mapping[str, Any]
    data_sets: Sequence[str] = DATA_SETS
    weights: str | None = None

    def config(self, data_set: str, objective: str, seed: int) -> ProtocolConfig:
        """Return the configuration of an encoder."""
        config = protocol_config(data_set, seed=seed, objective=objective, **self.options)
        if config.network.frozen and self.weights is not None:
            network = config.network.model_copy(update={"weights": self.weights})
            return config.model_copy(update={"network": network})
        return config

    def cells(self) -> Iterator[tuple[str, str, int]]:
        """Yield data set, objective and seed of every encoder, ordered by seed.

        Objectives on views are left out if the trunk is frozen: a frozen trunk encodes each image
        once, so there are no two views.
        """
        for data_set in self.data_sets:
            frozen = self.config(data_set, "contrastive", 0).network.frozen
            for seed in self.seeds:
                for objective in self.objectives:
                    if not (frozen and objective in OF_VIEWS):
                        yield data_set, objective, seed

    def path(self, data_set: str, objective: str, seed: int) -> Path:
        """Return the path of a measured cell."""
        return self.directory / "cells" / data_set / objective / f"seed-{seed}.json"


def objectives_named(wanted: str | None) -> list[str]:
    """Return the objectives of a comma-separated list; None means all objectives.

    Raises
    ------
    ConfigError : a name is not in `OBJECTIVES`.
    """
    if wanted is None:
        return list(OBJECTIVES)
    chosen = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in OBJECTIVES]
    if unknown or not chosen:
        raise ConfigError(
            f"No objective {', '.join(unknown)!r}. There are: {', '.join(OBJECTIVES)}."
        )
    return [name for name in OBJECTIVES if name in chosen]


def run_grid(grid: Grid) -> tuple[list[Cell], list[str]]:
    """Measure all missing cells; a failed cell does not stop the measurement.

    Returns
    -------
    All measured cells, each with its ``data_set``, and a message for each failed cell.

    Raises
    ------
    ConfigError : the directory has cells that were measured with other settings.
    """
    _require_same_settings(grid)
    cells, failures = [], []
    everything = list(grid.cells())
    for number, (data_set, objective, seed) in enumerate(everything, start=1):
        path = grid.path(data_set, objective, seed)
        if not path.exists():
            try:
                write_cell(path, _measured(grid, data_set, objective, seed))
            except BuildError as error:
                failures.append(f"{data_set}, {objective}, seed {seed}: {error}")
                continue
            console.print(f"{data_set}, {objective}, seed {seed} ({number} of {len(everything)})")
        cells.append(json.loads(path.read_text(encoding="utf-8")))
    return cells, failures


def _measured(grid: Grid, data_set: str, objective: str, seed: int) -> Cell:
    quiet, console.quiet = console.quiet, True
    try:
        cell = measure_encoder(
            grid.config(data_set, objective, seed),
            Run(grid.directory / "run"),
            Run(grid.directory / "trunks" / data_set),
            PRIORS if objective in OF_PRIORS else {},
        )
    finally:
        console.quiet = quiet
    return {"data_set": data_set, **cell}


def _require_same_settings(grid: Grid) -> None:
    path = grid.directory / "settings.json"
    configs = {name: grid.config(name, "contrastive", 0) for name in grid.data_sets}
    if not path.exists():
        write_cell(path, {name: config.model_dump(mode="json") for name, config in configs.items()})
        return
    before = json.loads(path.read_text(encoding="utf-8"))
    if any(name not in before or configs[name].changed_since(before[name]) for name in configs):
        raise ConfigError(
            f"{grid.directory} has measurements with other settings. Set another --out directory, "
            "or use the same settings."
        )


def compare_objectives(
    objectives: str | None,
    n_seeds: int,
    directory: Path,
    *,
    weights: str | None = None,
    **options: Any,  # noqa: ANN401 - of `protocol_config`
) -> str:
    """Measure all cells (data set × objective × seed) without a result, and report all cells.

    Returns
    -------
    The tables in Markdown. The files table.md, report.json and report.html are written to
    ``directory``.

    Raises
    ------
    BuildError : a name is unknown, data are missing, or an encoder failed. All other encoders are
        reported.
    """
    named = objectives_named(objectives)
    grid = Grid(named, range(n_seeds), directory, options, DATA_SETS, weights)
    cells, failures = run_grid(grid)
    if not cells:
        raise BuildError(failures[0])
    summary = summary_of(cells, failures)
    return publish(directory, summary, markdown(summary), write_page, failures, len(cells))
