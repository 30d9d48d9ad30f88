"""Write a report as one HTML page, without scripts and other files, in light or dark colours."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from index_builder.output import templates_of
from index_builder.reproduction.summary import (
    COLUMNS,
    SEEN_BY_THE_DECISION_LAYER,
    STAGES,
    STRUCTURE,
    MetricColumn,
    Report,
    figure,
    further_outliers,
    gibibytes,
)
from vouch_search import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Method = Mapping[str, Any]

N_HUES = 8
"""Number of colours; if there are more methods, colours are used again."""

N_SHOWN = 4
"""Number of methods that charts initially show in colour."""


def write_page(report: Report, path: Path) -> None:
    """Write the page of a report to ``path``."""
    path.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """Return the page of a report."""
    environment = templates_of("index_builder.reproduction")
    environment.filters["figure"] = figure
    environment.filters["gibibytes"] = gibibytes
    methods = report["methods"]
    columns = (*COLUMNS, *further_outliers(report))
    return environment.get_template("report.html.jinja").render(
        report=report,
        methods=methods,
        columns=columns,
        structure=[column for column in STRUCTURE if _is_known(column, methods)],
        best={column.metric: _best(column, methods) for column in (*columns, *STRUCTURE)},
        shown=_shown_at_first(methods),
        n_hues=N_HUES,
        charts=_charts(methods),
        cards=[_card(method) for method in methods],
        stages=STAGES,
        seen_by_the_decision_layer=SEEN_BY_THE_DECISION_LAYER,
        longest=_longest(methods),
        comparison=_comparison(report),
        config=json.dumps(report["config"], indent=1, sort_keys=True),
    )


def _is_known(column: MetricColumn, methods: Sequence[Method]) -> bool:
    return any(_mean(method, column.metric) is not None for method in methods)


def _mean(method: Method, metric: str) -> float | None:
    value = method["metrics"].get(metric)
    return None if value is None else value["mean"]


def _best(column: MetricColumn, methods: Sequence[Method]) -> set[int]:
    """Return the rows of the methods with the best rounded value in a column."""
    known = {
        place: round(value, 3)
        for place, method in enumerate(methods)
        if (value := _mean(method, column.metric)) is not None
    }
    if column.larger_is_better is None or not known:
        return set()
    best = max(known.values()) if column.larger_is_better else min(known.values())
    return {place for place, value in known.items() if value == best}


def _shown_at_first(methods: Sequence[Method]) -> set[int]:
    """Return the last row (the decision layer), and the rows of the methods with the best AUSC."""
    last = len(methods) - 1
    others = sorted(range(last), key=lambda place: -(_mean(methods[place], "ausc") or 0.0))
    return {last, *others[: N_SHOWN - 1]}


def _charts(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Return the charts that show all methods."""
    drawn = [
        _overlay(
            methods,
            "Accuracy without the most uncertain queries",
            "Accuracy after removing a share of the queries, the most uncertain first. Steeper is "
            "better.",
            ("share of queries removed", "accuracy of the rest"),
            [method["curves"].get("sparsification") for method in methods],
        ),
        _overlay(
            methods,
            "Risk and coverage",
            "Share of wrong answers if only the most certain queries are answered. Lower is "
            "better.",
            ("share of queries answered", "share of wrong answers"),
            [method["curves"].get("risk_coverage") for method in methods],
            from_zero=True,
        ),
    ]
    names = {name: None for method in methods for name in method["curves"].get("outliers", {})}
    drawn += [
        _overlay(
            methods,
            f"Detection of outliers: {name}",
            "Share of detected outliers and of false alarms, for every threshold. Up and left is "
            "better.",
            ("false alarms on ordinary queries", "outliers found"),
            [method["curves"].get("outliers", {}).get(name, {}).get("roc") for method in methods],
            from_zero=True,
        )
        for name in names
    ]
    return drawn


def _overlay(
    methods: Sequence[Method],
    title: str,
    text: str,
    axis_titles: tuple[str, str],
    curves: Sequence[Sequence[Sequence[float]] | None],
    *,
    from_zero: bool = False,
) -> dict[str, Any]:
    """Return a chart with a line for each method; the page sets the colours."""

    def draw(ax: Axes) -> None:
        for place, points in enumerate(curves):
            if points:
                x, y = np.array(points).T
                ax.plot(x, y, gid=f"line-{place}")
        ax.set(xlim=(0, 1), xlabel=axis_titles[0], ylabel=axis_titles[1])
        if from_zero:
            ax.set_ylim(bottom=0)

    def of_class(line: re.Match[str]) -> str:
        name = escape(methods[int(line[1])]["title"])
        return f'<g class="line line-{line[1]}"><title>{name}</title>'

    svg = plots.svg(draw, f"{title}. {text}")
    return {"title": title, "text": text, "svg": re.sub(r'<g id="line-(\d+)">', of_class, svg)}


def _card(method: Method) -> dict[str, Any]:
    """Return the charts of one method."""
    curves = method["curves"]

    def draw_reliability(ax: Axes) -> None:
        total = sum(one["n"] for one in curves["reliability"])
        bins = [{"weight": one["n"] / total, **one} for one in curves["reliability"]]
        plots.reliability({"reliability": bins}, ax=ax).set(xlabel="confidence", ylabel="accuracy")

    def draw_histogram(ax: Axes, shares: Mapping[str, Sequence[float]]) -> None:
        edges = np.linspace(0, 1, len(shares["ordinary"]) + 1)
        for name, values in shares.items():
            ax.stairs(values, edges, fill=True, alpha=0.6, label=name)
        ax.set(xlabel="rank of the uncertainty", ylabel="share of queries")
        ax.legend(fontsize="small")

    return {
        "reliability": plots.svg(draw_reliability, f"Reliability diagram of {method['title']}")
        if curves.get("reliability")
        else None,
        "histograms": [
            {
                "name": name,
                "svg": plots.svg(
                    partial(draw_histogram, shares=one["histogram"]),
                    f"Histogram: uncertainty of ordinary queries and of {name}",
                ),
            }
            for name, one in curves.get("outliers", {}).items()
        ],
    }


def _longest(methods: Sequence[Method]) -> dict[str, float]:
    """Return the longest mean time of each stage; bars are scaled to this time."""
    return {
        stage: max([method["costs"][stage]["seconds"]["mean"] for method in methods] + [1e-9])
        for stage in STAGES
    }


def _comparison(report: Report) -> dict[str, Any] | None:
    """Return pairs of published and measured values."""
    published = report["protocol"]["published"]
    measured = {method["name"]: method for method in report["methods"]}
    columns = [
        column for column in COLUMNS if any(column.metric in row for row in published.values())
    ]
    rows = [
        {
            "title": measured[name]["title"] if name in measured else name.replace("_", " "),
            "cells": [
                (
                    row.get(column.metric, "–"),
                    figure(measured[name]["metrics"].get(column.metric))
                    if name in measured
                    else "–",
                )
                for column in columns
            ],
        }
        for name, row in published.items()
    ]
    return {"columns": columns, "rows": rows} if rows else None
