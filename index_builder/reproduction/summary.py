"""Combine cells into a report: means over seeds, tables, and the machines that were used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index_builder.pipeline.run import write_json
from index_builder.reproduction.cells import Cell, ExperimentPlan, FailedCell
from index_builder.reproduction.protocols import PROTOCOLS
from model_store.errors import BuildError

Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """A column of a table: one metric.

    Attributes
    ----------
    larger_is_better : None if neither a larger nor a smaller value is better.
    meaning : an explanation of the metric.
    """

    metric: str
    title: str
    larger_is_better: bool | None
    meaning: str


COLUMNS = (
    MetricColumn("recall_at_1", "R@1", True, "Share of queries whose first result is right."),
    MetricColumn("map_at_5", "mAP@5", True, "Mean average precision of the first five results."),
    MetricColumn("map_at_10", "mAP@10", True, "Mean average precision of the first ten results."),
    MetricColumn(
        "map_at_r",
        "mAP@R",
        True,
        "Mean average precision of the first R results; R is the number of true matches.",
    ),
    MetricColumn(
        "ood_auroc",
        "AUROC",
        True,
        "Detection of outliers: area under the ROC curve; 0.5 is chance.",
    ),
    MetricColumn(
        "ood_auprc", "AUPRC", True, "Detection of outliers: area under the precision-recall curve."
    ),
    MetricColumn(
        "ood_fpr95",
        "FPR@95",
        False,
        "Share of ordinary queries that are rejected if 95 % of outliers are rejected.",
    ),
    MetricColumn(
        "error_auroc",
        "error AUROC",
        True,
        "AUROC of the uncertainty for detecting wrong first results.",
    ),
    MetricColumn(
        "ausc", "AUSC", True, "Mean accuracy while uncertain queries are removed step by step."
    ),
    MetricColumn(
        "aurc",
        "AURC",
        False,
        "Error rate of the answered queries, averaged over all shares of answered queries.",
    ),
    MetricColumn(
        "augrc",
        "AUGRC",
        False,
        "Wrong answers as a share of all queries, averaged over all shares of answered queries.",
    ),
    MetricColumn("ece", "ECE", False, "Mean difference between confidence and accuracy."),
    MetricColumn("brier", "Brier", False, "Mean squared error of the confidence."),
    MetricColumn(
        "dir_at_far_0.1",
        "DIR",
        True,
        "Share of queries with a match that have a right first result and are accepted. The "
        "threshold accepts 10 % of outliers.",
    ),
    MetricColumn(
        "oscr",
        "OSCR",
        True,
        "Probability that a query with a match has a right first result and is more certain than "
        "an outlier.",
    ),
)

STRUCTURE = (
    MetricColumn(
        "recall_at_2", "R@2", True, "Share of queries with a true match in the first two results."
    ),
    MetricColumn(
        "recall_at_5", "R@5", True, "Share of queries with a true match in the first five results."
    ),
    MetricColumn(
        "recall_at_10", "R@10", True, "Share of queries with a true match in the first ten results."
    ),
    MetricColumn(
        "euclidean_recall_at_1",
        "R@1, Eucl.",
        True,
        "R@1 if results are ranked by Euclidean distance.",
    ),
    MetricColumn(
        "euclidean_recall_at_10",
        "R@10, Eucl.",
        True,
        "R@10 if results are ranked by Euclidean distance.",
    ),
    MetricColumn(
        "map_at_1000", "mAP@1000", True, "Mean average precision of the first thousand results."
    ),
    MetricColumn("average_precision", "AP", True, "Mean average precision of whole rankings."),
    MetricColumn("nmi", "NMI", True, "Agreement of k-means clusters with labels."),
    MetricColumn("entropy", "entropy", None, "Entropy of the embedding, up to a constant."),
    MetricColumn(
        "feature_diversity", "feature div.", None, "How evenly the embedding uses its dimensions."
    ),
    MetricColumn(
        "cluster_diversity", "cluster div.", None, "Variance of the distances within a label."
    ),
    MetricColumn(
        "ausc_with_neighbour",
        "AUSC, both",
        True,
        "AUSC if the uncertainty is the sum of two variances: of the query and of the first "
        "result.",
    ),
    MetricColumn(
        "similarity_ood_auroc", "AUROC, sim.", True, "AUROC if the similarity is the only signal."
    ),
    MetricColumn(
        "similarity_error_auroc",
        "error AUROC, sim.",
        True,
        "Error AUROC if the similarity is the only signal.",
    ),
    MetricColumn(
        "similarity_ausc", "AUSC, sim.", True, "AUSC if the similarity is the only signal."
    ),
    MetricColumn(
        "recall_of_likeliest", "R@1, by prob.", True, "R@1 if results are ranked by probability."
    ),
    MetricColumn(
        "ece_of_likeliest", "ECE, by prob.", False, "ECE if results are ranked by probability."
    ),
    MetricColumn(
        "error_auroc_of_likeliest",
        "error AUROC, by prob.",
        True,
        "Error AUROC if results are ranked by probability.",
    ),
    MetricColumn(
        "dir_at_far_0.01",
        "DIR at 1 %",
        True,
        "Share of queries with a match that have a right first result and are accepted. The "
        "threshold accepts 1 % of outliers.",
    ),
)

STAGES = ("training", "fit", "evaluation")

SEEN_BY_THE_DECISION_LAYER = (
    "The decision layer uses data that the other methods do not use: the labels and features of "
    "the gallery, labelled queries that were held out of training (some of them corrupted), and "
    "crops of a photograph as examples of outliers."
)


def further_outliers(report: Report) -> tuple[MetricColumn, ...]:
    """Return a column for each kind of outliers except the main kind, which has its own columns."""
    protocol = report["protocol"]
    return tuple(
        MetricColumn(
            f"ood_auroc: {name}",
            f"AUROC, {name}",
            True,
            f"Detection of {name} ({one['kind']} outliers): area under the ROC curve.",
        )
        for name, one in protocol["outliers"].items()
        if name != protocol["main_outliers"]
    )


def report_of(
    plan: ExperimentPlan, cells: Sequence[Cell], failures: Sequence[FailedCell] = ()
) -> Report:
    """Return a report of all measured results.

    Returns
    -------
    A JSON object with ``protocol``, ``seeds``, ``epochs``, ``methods``, ``failures``, ``machines``
    and ``config``. The entry of a method contains the metrics of each seed, their means and
    standard deviations over the seeds, and the costs. The entry also contains the curves and
    pictures of the first seed.
    """
    protocol = PROTOCOLS[plan.base.dataset.protocol]
    first = cells[0]
    of_method = {name: [cell for cell in cells if cell["method"] == name] for name in plan.methods}
    return {
        "protocol": {
            "name": plan.base.dataset.protocol,
            "title": protocol.title,
            "notes": list(protocol.notes),
            "published": {name: dict(row) for name, row in protocol.published.items()},
            **{
                key: first[key]
                for key in (
                    "n_queries",
                    "n_gallery",
                    "n_training",
                    "n_development",
                    "outliers",
                    "main_outliers",
                )
            },
            "partial": first["partial"],
        },
        "seeds": list(plan.seeds),
        "epochs": plan.base.training.epochs,
        "methods": [_method(of_one) for of_one in of_method.values() if of_one],
        "failures": [asdict(one) for one in failures],
        "machines": _different([cell["machine"] for cell in cells]),
        "config": plan.base.model_dump(mode="json"),
    }


def publish(
    directory: Path,
    report: Report,
    tables: str,
    write_page: Callable[[Report, Path], None] | None = None,
    failures: Sequence[str] = (),
    n_measured: int = 0,
) -> str:
    """Write report.json, report.html (with ``write_page``) and table.md; return the tables.

    Raises
    ------
    BuildError : there are failures. The files have all ``n_measured`` other measurements.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "report.json", report)
    if write_page is not None:
        write_page(report, directory / "report.html")
    (directory / "table.md").write_text(tables, encoding="utf-8")
    if failures:
        raise BuildError(
            f"{len(failures)} of {n_measured + len(failures)} measurements failed. The tables in "
            f"{directory} have all others. To retry, run the command again. Failed: "
            + "; ".join(failures)
        )
    return tables


def _different(machines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for place, one in enumerate(machines) if one not in machines[:place]]


def _method(cells: Sequence[Cell]) -> dict[str, Any]:
    names = {name: None for cell in cells for name in cell["metrics"]}
    return {
        "name": cells[0]["method"],
        "title": cells[0]["title"],
        "metrics": {
            name: summarised([cell["metrics"].get(name) for cell in cells]) for name in names
        },
        "costs": {
            stage: {
                "seconds": summarised([cell["costs"][stage]["seconds"] for cell in cells]),
                "peak_bytes": summarised([cell["costs"][stage]["peak_bytes"] for cell in cells]),
                "peak_gpu_bytes": summarised(
                    [cell["costs"][stage]["peak_gpu_bytes"] for cell in cells]
                ),
                "shared": bool(cells[0]["costs"][stage].get("shared", False)),
            }
            for stage in STAGES
        },
        "seeds": {str(cell["seed"]): cell["metrics"] for cell in cells},
        "curves": cells[0]["curves"],
        "pictures": cells[0]["pictures"],
    }


def summarised(values: Sequence[float | None]) -> dict[str, float | int | None]:
    """Return mean, sample standard deviation and number of the values that are not None."""
    known = [value for value in values if value is not None]
    return {
        "mean": float(np.mean(known)) if known else None,
        "sd": float(np.std(known, ddof=1)) if len(known) > 1 else None,
        "n": len(known),
    }


def markdown(report: Report) -> str:
    """Return the main table, the costs, and the published results if there are any."""
    columns = (*COLUMNS, *further_outliers(report))
    parts = [
        _table(report["methods"], columns),
        SEEN_BY_THE_DECISION_LAYER,
        _costs(report["methods"]),
    ]
    published = report["protocol"]["published"]
    if published:
        parts.append(_published(published, report["methods"]))
    return "\n\n".join(parts) + "\n"


def figure(value: Mapping[str, Any] | None, digits: int = 3) -> str:
    """Format a value as mean ± standard deviation; an undefined value as a dash."""
    if value is None or value["mean"] is None:
        return "–"
    mean = f"{value['mean']:.{digits}f}"
    return mean if value["sd"] is None else f"{mean} ± {value['sd']:.{digits}f}"


def _table(methods: Sequence[Mapping[str, Any]], columns: Sequence[MetricColumn]) -> str:
    head = ["method", *(column.title for column in columns)]
    rows = [
        [method["title"], *(figure(method["metrics"].get(column.metric)) for column in columns)]
        for method in methods
    ]
    return markdown_table(head, rows)


def _costs(methods: Sequence[Mapping[str, Any]]) -> str:
    head = ["method"]
    for stage in STAGES:
        head += [f"{stage}, s", "peak GiB"]
    rows = []
    for method in methods:
        row = [method["title"]]
        for stage in STAGES:
            cost = method["costs"][stage]
            shared = " (shared)" if cost["shared"] else ""
            row += [f"{cost['seconds']['mean']:.1f}{shared}", gibibytes(cost["peak_bytes"])]
        rows.append(row)
    return markdown_table(head, rows)


def gibibytes(value: Mapping[str, Any]) -> str:
    """Format a number of bytes in GiB."""
    return "–" if value["mean"] is None else f"{value['mean'] / 2**30:.2f}"


def _published(
    published: Mapping[str, Mapping[str, str]], methods: Sequence[Mapping[str, Any]]
) -> str:
    columns = [
        column for column in COLUMNS if any(column.metric in row for row in published.values())
    ]
    titles = {method["name"]: method["title"] for method in methods}
    rows = [
        [titles.get(name, name), *(row.get(column.metric, "–") for column in columns)]
        for name, row in published.items()
    ]
    return markdown_table(["published results", *(column.title for column in columns)], rows)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], n_names: int = 1) -> str:
    """Return a table; all columns except the first ``n_names`` are aligned to the right."""
    lines = [head, [*["---"] * n_names, *["---:"] * (len(head) - n_names)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
