"""A certificate as one page that needs nothing else: no network, no script, made to be printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from index_builder.metrics.charts import UNIT
from index_builder.metrics.pages import SIZE, templates_of

SIZES = {"one": "one image", "few": "2 to 5 images", "many": "more than 5 images"}
"""Size classes of labels, as people say them."""


def page(content: Mapping[str, Any], public_key: str | None) -> str:
    """Return the page of a certificate's ``content``; ``public_key`` is that of who signed it."""
    environment = templates_of("index_builder.certificates")
    environment.filters["number"] = number
    return environment.get_template("certificate.html.jinja").render(
        content=content,
        public_key=public_key,
        sizes=SIZES,
        dots=_dots(content["measured"]["cross_fitted"]["reliability"]),
        axes=UNIT,
        evaluation=measurements(content["measured"]["evaluation"] or {}),
        size=SIZE,
    )


def number(value: float | None) -> str:
    """Return a number as the page prints it: whole ones with commas, others with 3 decimals."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def measurements(report: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return the numbers of an evaluation, flattened, with what each is called."""
    rows = []
    for name, value in report.items():
        label = prefix + name.replace("_", " ")
        if isinstance(value, Mapping):
            rows += measurements(value, f"{label}: ")
        elif isinstance(value, int | float) or value is None:
            rows.append((label, number(value)))
    return rows


def _dots(reliability: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of a reliability diagram in the units of an SVG."""
    return [
        {
            "x": UNIT.x(one["probability"]),
            "y": UNIT.y(one["share"]),
            "ideal": UNIT.y(one["probability"]),
            "radius": round(2.5 + 9 * one["weight"] ** 0.5, 2),
            "text": f"{one['n']:,} queries of probability {one['probability']:.3f}: "
            f"{one['share']:.3f} right",
        }
        for one in reliability
    ]
