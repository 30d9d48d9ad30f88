"""The chart of the load: goodput, and the 95th percentile of latencies, against offered load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

Curves = Mapping[str, Sequence[Mapping[str, Any]]]


def chart(curves: Curves) -> Figure:
    """Draw two panels, with a line for each system."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    of_goodput, of_latency = figure.subplots(1, 2)
    for name, curve in curves.items():
        offered = [point["offered_per_s"] for point in curve]
        goodput = [point["goodput_per_s"] for point in curve]
        of_goodput.plot(offered, goodput, "o-", markersize=3, label=name.replace("_", " "))
        timed = [point for point in curve if "all_ms" in point]
        of_latency.plot(
            [point["offered_per_s"] for point in timed],
            [point["all_ms"]["p95"] / 1000 for point in timed],
            "o-",
            markersize=3,
        )
    of_goodput.set(ylabel="correct answers a second, in time")
    of_latency.set(ylabel="95th percentile of latencies, seconds", ylim=(0, 10))
    for ax in (of_goodput, of_latency):
        ax.set(xlim=(0, None), xlabel="requests due a second")
    of_goodput.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
