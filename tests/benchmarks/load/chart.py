"""The chart of the load: goodput, and the 95th percentile of latencies, against offered load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from index_builder.metrics.charts import HEIGHT, LEFT, WIDTH, Axes

COLOURS = ("#1f5fbf", "#7aa5e6", "#c44e35", "#d99a2b", "#4f8a4b", "#8a5aa8")
LEGEND = 22
"""Height of a line of the legend."""

Curves = Mapping[str, Sequence[Mapping[str, Any]]]


def chart(curves: Curves) -> str:
    """Return an SVG of two panels, with a line for each system."""
    offered = max(point["offered_per_s"] for curve in curves.values() for point in curve)
    goodput = max(point["goodput_per_s"] for curve in curves.values() for point in curve)
    panels = [
        _panel(
            Axes(0, 1.02 * offered, 0, 1.1 * goodput),
            {
                name: [(point["offered_per_s"], point["goodput_per_s"]) for point in curve]
                for name, curve in curves.items()
            },
            "right answers a second, in time",
        ),
        _panel(
            Axes(0, 1.02 * offered, 0, 10),
            {
                name: [
                    (point["offered_per_s"], point["all_ms"]["p95"] / 1000)
                    for point in curve
                    if "all_ms" in point
                ]
                for name, curve in curves.items()
            },
            "95th percentile of latencies, seconds",
        ),
    ]
    height = HEIGHT + LEGEND * -(-len(curves) // 3)
    legend = "".join(
        f'<g transform="translate({LEFT + number % 3 * 210} {HEIGHT + 8 + number // 3 * LEGEND})">'
        f'<path d="M0 0H18" stroke="{colour}" stroke-width="2"/>'
        f'<text x="24" y="4">{escape(name.replace("_", " "))}</text></g>'
        for number, (name, colour) in enumerate(zip(curves, COLOURS, strict=False))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {height}"'
        ' font-family="sans-serif" font-size="11" fill="#555">'
        f'<rect width="{2 * WIDTH}" height="{height}" fill="#fff"/>'
        f'{panels[0]}<g transform="translate({WIDTH})">{panels[1]}</g>{legend}</svg>\n'
    )


def _panel(axes: Axes, lines: Mapping[str, Sequence[tuple[float, float]]], title: str) -> str:
    ticks = "".join(
        f'<text x="{tick.place}" y="{HEIGHT - 24}" text-anchor="middle">{tick.label}</text>'
        for tick in axes.x_ticks
    ) + "".join(
        f'<text x="{LEFT - 8}" y="{tick.place + 4}" text-anchor="end">{tick.label}</text>'
        for tick in axes.y_ticks
    )
    frame = axes.path([(0, axes.y_high), (0, 0), (axes.x_high, 0)])
    drawn = "".join(
        f'<path d="{axes.path(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        + "".join(
            f'<circle cx="{axes.x(x)}" cy="{axes.y(y)}" r="2.5" fill="{colour}"/>'
            for x, y in points
        )
        for points, colour in zip(lines.values(), COLOURS, strict=False)
        if points
    )
    return (
        f'<path d="{frame}" fill="none" stroke="#999"/>{drawn}{ticks}'
        f'<text x="{axes.x(axes.x_high / 2)}" y="{HEIGHT - 6}" text-anchor="middle">'
        "requests due a second</text>"
        f'<text transform="translate(14 {axes.y(axes.y_high / 2)}) rotate(-90)"'
        f' text-anchor="middle">{title}</text>'
    )
