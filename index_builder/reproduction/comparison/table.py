"""Tables of means over seeds, as JSON, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from index_builder.output import templates_of
from index_builder.reproduction.comparison.measure import DECISION, LAPLACE, NORM, Cell
from index_builder.reproduction.protocols import PROTOCOLS
from index_builder.reproduction.summary import summarised

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
        row = [f"`{one['name']}`", str(one["n_seeds"]), _spread(recall), _mean(euclidean)]
        row += [_spread(at_r), _mean(clusters)]
        row += [" / ".join(map(_mean, figures[group])) for group in list(GROUPS)[1:4]]
        row.append(_ratio(one, baseline))
        rows.append(row)
    return _lines(head, rows)


def _ratio(one: Mapping[str, Any], baseline: Mapping[str, Any] | None) -> str:
    """Return the training time, divided by the training time of `BASELINE`."""
    if baseline is None:
        return "–"
    own, of_baseline = (each["figures"]["costs, s"][0]["mean"] for each in (one, baseline))
    return f"{own / of_baseline:.1f}"


def _prior_table(priors: Sequence[Mapping[str, Any]]) -> str:
    rows = [[prior["name"], *(_spread(figure) for figure in prior["figures"])] for prior in priors]
    return _lines(["Laplace posterior", "errors", "outliers", "ECE"], rows)


def _mean(figure: Mapping[str, Any]) -> str:
    return "–" if figure["mean"] is None else f"{figure['mean']:.2f}"


def _spread(figure: Mapping[str, Any]) -> str:
    if figure["mean"] is None:
        return "–"
    mean = f"{figure['mean']:.3f}"
    return mean if figure["sd"] is None else f"{mean} ± {figure['sd']:.3f}"


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_page(summary: Summary, path: Path) -> None:
    """Write the HTML page of a comparison; the best mean of each column is bold."""
    environment = templates_of("index_builder.reproduction")
    text = environment.get_template("comparison.html.jinja").render(
        summary=summary,
        groups=GROUPS,
        spread=_spread,
        sizes_in_words=sizes_in_words,
        best={one["name"]: _best(one) for one in summary["data_sets"]},
    )
    path.write_text(text, encoding="utf-8")


def _best(data_set: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return, for each column, the best mean over all objectives."""
    found: dict[str, list[float | None]] = {}
    for group, figures in GROUPS.items():
        found[group] = []
        for place, figure in enumerate(figures):
            known = [
                value
                for one in data_set["objectives"]
                if (value := one["figures"][group][place]["mean"]) is not None
            ]
            wanted = max if figure.larger_is_better else min
            found[group].append(wanted(known) if known else None)
    return found
