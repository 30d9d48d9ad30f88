"""A report as one page that needs nothing else: no network, no script, light and dark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from index_builder.metrics.charts import UNIT, Line, bars, fitted
from index_builder.metrics.pages import SIZE, templates_of
from index_builder.reproduction.summary import (
    COLUMNS,
    SEEN_BY_THE_DECISION_LAYER,
    STAGES,
    STRUCTURE,
    Column,
    Report,
    figure,
    further_outliers,
    gibibytes,
)

Method = Mapping[str, Any]

N_HUES = 8
"""Colours of the page; methods beyond share them."""

N_SHOWN = 4
"""Methods that charts show in colour at first."""


def write_page(report: Report, path: Path) -> None:
    """Write the page of a report to ``path``."""
    path.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """The page of a report."""
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
        size=SIZE,
    )


def _is_known(column: Column, methods: Sequence[Method]) -> bool:
    return any(_mean(method, column.metric) is not None for method in methods)


def _mean(method: Method, metric: str) -> float | None:
    value = method["metrics"].get(metric)
    return None if value is None else value["mean"]


def _best(column: Column, methods: Sequence[Method]) -> set[int]:
    """Places of the methods whose figure, as it is printed, is the best of a column."""
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
    """The last method, which is the decision layer, and the best of the others by AUSC."""
    last = len(methods) - 1
    others = sorted(range(last), key=lambda place: -(_mean(methods[place], "ausc") or 0.0))
    return {last, *others[: N_SHOWN - 1]}


def _charts(methods: Sequence[Method]) -> list[dict[str, Any]]:
    """Charts of all methods together."""
    drawn = [
        _overlay(
            methods,
            "Leaving out the least sure",
            "Accuracy of the rest, as the most uncertain queries are removed. Steeper is better.",
            ("share of queries removed", "accuracy of the rest"),
            [method["curves"].get("sparsification") for method in methods],
        ),
        _overlay(
            methods,
            "Risk and coverage",
            "Errors among the queries that are answered, the surest first. Lower is better.",
            ("share of queries answered", "share of wrong answers"),
            [method["curves"].get("risk_coverage") for method in methods],
            from_zero=True,
        ),
    ]
    names = {name: None for method in methods for name in method["curves"].get("outliers", {})}
    drawn += [
        _overlay(
            methods,
            f"Telling outliers: {name}",
            "Outliers found against false alarms, at every threshold. Up and left is better.",
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
    axes = fitted([points for points in curves if points], from_zero=from_zero)
    lines = [
        Line(place, method["title"], axes.path(points))
        for place, (method, points) in enumerate(zip(methods, curves, strict=True))
        if points
    ]
    return {"title": title, "text": text, "axis_titles": axis_titles, "axes": axes, "lines": lines}


def _card(method: Method) -> dict[str, Any]:
    """Charts of one method alone."""
    reliability = method["curves"].get("reliability")
    histograms = []
    for name, one in method["curves"].get("outliers", {}).items():
        shares = one["histogram"]
        highest = max(*shares["ordinary"], *shares["outliers"])
        histograms.append(
            {
                "name": name,
                "ordinary": bars(shares["ordinary"], highest),
                "outliers": bars(shares["outliers"], highest),
            }
        )
    total = sum(one["n"] for one in reliability) if reliability else 1
    return {
        "reliability": reliability
        and [
            {
                "x": UNIT.x(one["probability"]),
                "y": UNIT.y(one["share"]),
                "ideal": UNIT.y(one["probability"]),
                "radius": round(2.5 + 9 * (one["n"] / total) ** 0.5, 2),
                "text": f"{one['n']:,} answers at confidence {one['probability']:.3f}: "
                f"{one['share']:.3f} right",
            }
            for one in reliability
        ],
        "axes": UNIT,
        "histograms": histograms,
    }


def _longest(methods: Sequence[Method]) -> dict[str, float]:
    """The longest mean of each stage, by which bars are scaled."""
    return {
        stage: max([method["costs"][stage]["seconds"]["mean"] for method in methods] + [1e-9])
        for stage in STAGES
    }


def _comparison(report: Report) -> dict[str, Any] | None:
    """The papers' figures, each beside what was measured here."""
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
