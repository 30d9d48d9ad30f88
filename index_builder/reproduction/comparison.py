"""Measure data sets × seeds × objectives, and show means over seeds as tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index_builder.configuration.objective import OF_VIEWS
from index_builder.objectives.registry import OBJECTIVES
from index_builder.output import templates_of
from index_builder.pipeline.run import Run
from index_builder.progress import console
from index_builder.reproduction.cells import chosen_names, write_cell
from index_builder.reproduction.compared_encoder import (
    DECISION,
    LAPLACE,
    NORM,
    PRIORS,
    Cell,
    measure_encoder,
)
from index_builder.reproduction.protocols import PROTOCOLS, ProtocolConfig, protocol_config
from index_builder.reproduction.summary import figure, markdown_table, publish, summarised
from model_store.errors import BuildError, ConfigError

Summary = dict[str, Any]

BASELINE = "contrastive"
"""Training times are divided by the training time of this objective."""

DEFAULT_PRIOR = "Kronecker-factored, prior by curvature, temperature by validation (default)"


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of the table.

    Attributes
    ----------
    larger_is_better : None if neither a larger nor a smaller value is better.
    of : function that returns the column's value for a cell of the grid, or None.
    """

    title: str
    larger_is_better: bool | None
    of: Callable[[Cell], float | None]


def _metric(posterior: str, metric: str) -> Callable[[Cell], float | None]:
    return lambda cell: cell["metrics"][posterior].get(metric)


def _cost(stage: str) -> Callable[[Cell], float | None]:
    return lambda cell: cell["costs"][stage]


def _views(metric: str, *, larger_is_better: bool) -> tuple[Figure, ...]:
    """Return the columns of a metric for four signals: cosine, length, Laplace and decision."""
    return (
        Figure("cosine", larger_is_better, _metric(LAPLACE, f"similarity_{metric}")),
        Figure("length", larger_is_better, _metric(NORM, metric)),
        Figure("Laplace", larger_is_better, _metric(LAPLACE, metric)),
        Figure("decision", larger_is_better, _metric(DECISION, metric)),
    )


GROUPS: Mapping[str, tuple[Figure, ...]] = {
    "finds": (
        Figure("R@1", True, _metric(LAPLACE, "recall_at_1")),
        Figure("R@1, Euclidean", True, _metric(LAPLACE, "euclidean_recall_at_1")),
        Figure("mAP@R", True, _metric(LAPLACE, "map_at_r")),
        Figure("NMI", True, _metric(LAPLACE, "nmi")),
        Figure("R@1, by probability", True, _metric(DECISION, "recall_of_likeliest")),
    ),
    "errors, AUROC": _views("error_auroc", larger_is_better=True),
    "outliers, AUROC": _views("ood_auroc", larger_is_better=True),
    "ECE": _views("ece", larger_is_better=False),
    "costs, s": (
        Figure("training", False, _cost("training")),
        Figure("length", False, _cost(f"fit {NORM}")),
        Figure("Laplace", False, _cost(f"fit {LAPLACE}")),
        Figure("decision", False, _cost("decision")),
    ),
}
"""The groups of columns in the table. Times are CPU seconds."""

PRIOR_FIGURES = ("error_auroc", "ood_auroc", "ece")


def summary_of(cells: Sequence[Cell], failures: Sequence[str] = ()) -> Summary:
    """Return mean, standard deviation and sample size of all metrics, by data set and objective."""
    data_sets = list(dict.fromkeys(cell["data_set"] for cell in cells))
    return {
        "data_sets": [
            _data_set(name, [cell for cell in cells if cell["data_set"] == name])
            for name in data_sets
        ],
        "failures": list(failures),
        "machine": cells[0]["machine"],
    }


def _data_set(name: str, cells: Sequence[Cell]) -> dict[str, Any]:
    objectives = list(dict.fromkeys(cell["objective"] for cell in cells))
    return {
        "name": name,
        "title": PROTOCOLS[name].title,
        "sizes": cells[0]["sizes"],
        "outliers": cells[0]["outliers"],
        "partial": cells[0]["partial"],
        "objectives": [
            _objective(kind, [cell for cell in cells if cell["objective"] == kind])
            for kind in objectives
        ],
        "priors": _priors([cell for cell in cells if cell["priors"]]),
    }


def _objective(kind: str, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "name": kind,
        "n_seeds": len(cells),
        "figures": {
            group: [summarised([figure.of(cell) for cell in cells]) for figure in figures]
            for group, figures in GROUPS.items()
        },
    }


def _priors(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Compare the ways to choose the prior; each of the ``cells`` has results for all ways."""
    if not cells:
        return []
    ways = {DEFAULT_PRIOR: [cell["metrics"][LAPLACE] for cell in cells]}
    ways |= {way: [cell["priors"][way] for cell in cells] for way in cells[0]["priors"]}
    return [
        {
            "name": way,
            "objectives": sorted({cell["objective"] for cell in cells}),
            "figures": [
                summarised([one.get(metric) for one in metrics]) for metric in PRIOR_FIGURES
            ],
        }
        for way, metrics in ways.items()
    ]


def markdown(summary: Summary) -> str:
    """Return the tables as Markdown; only R@1 and mAP@R have standard deviations."""
    parts = []
    for data_set in summary["data_sets"]:
        parts += [f"### {data_set['title']}", sizes_in_words(data_set), _table(data_set)]
        if data_set["priors"]:
            parts.append(_prior_table(data_set["priors"]))
    return "\n\n".join(parts) + "\n"


def sizes_in_words(data_set: Mapping[str, Any]) -> str:
    """Describe the sizes of the data set and of the training in one sentence."""
    sizes = data_set["sizes"]
    return (
        f"{sizes['training']:,} training images of {sizes['training labels']} labels, "
        f"{sizes['epochs']} epochs, D = {sizes['dimensions']}; {sizes['validation']} images to "
        f"choose temperatures, {sizes['development']} for calibration; {sizes['queries']:,} "
        f"queries in a gallery of {sizes['gallery']:,}; {sizes['outliers']} outliers "
        f"({data_set['outliers']})."
    )


def _table(data_set: Mapping[str, Any]) -> str:
    head = ["objective", "seeds", "R@1", "R@1, Euclidean", "mAP@R", "NMI"]
    head += ["errors", "outliers", "ECE", "training"]
    baseline = next((one for one in data_set["objectives"] if one["name"] == BASELINE), None)
    rows = []
    for one in data_set["objectives"]:
        figures = one["figures"]
        recall, euclidean, at_r, clusters, _ = figures["finds"]
        row = [f"`{one['name']}`", str(one["n_seeds"]), figure(recall), _mean(euclidean)]
        row += [figure(at_r), _mean(clusters)]
        row += [" / ".join(map(_mean, figures[group])) for group in list(GROUPS)[1:4]]
        row.append(_ratio(one, baseline))
        rows.append(row)
    return markdown_table(head, rows)


def _ratio(one: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> str:
    """Return the training time, divided by the training time of `BASELINE`."""
    if baseline is None:
        return "–"
    own, of_baseline = (each["figures"]["costs, s"][0]["mean"] for each in (one, baseline))
    return f"{own / of_baseline:.1f}"


def _prior_table(priors: Sequence[Mapping[str, Any]]) -> str:
    rows = [[prior["name"], *(figure(one) for one in prior["figures"])] for prior in priors]
    return markdown_table(["Laplace posterior", "errors", "outliers", "ECE"], rows)


def _mean(figure: Mapping[str, Any]) -> str:
    return "–" if figure["mean"] is None else f"{figure['mean']:.2f}"


def write_page(summary: Summary, path: Path) -> None:
    """Write the HTML page of a comparison; the best mean of each column is bold."""
    environment = templates_of("index_builder.reproduction")
    text = environment.get_template("comparison.html.jinja").render(
        summary=summary,
        groups=GROUPS,
        spread=figure,
        sizes_in_words=sizes_in_words,
        best={one["name"]: _best(one) for one in summary["data_sets"]},
    )
    path.write_text(text, encoding="utf-8")


def _best(data_set: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return, for each column, the best mean over all objectives."""
    found: dict[str, list[float | None]] = {}
    for group, figures in GROUPS.items():
        found[group] = []
        for place, column in enumerate(figures):
            known = [
                value
                for one in data_set["objectives"]
                if (value := one["figures"][group][place]["mean"]) is not None
            ]
            wanted = max if column.larger_is_better else min
            found[group].append(wanted(known) if known else None)
    return found


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
    return [*OBJECTIVES] if wanted is None else chosen_names(wanted, OBJECTIVES, "objective")


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
