"""Renders a certificate as one printable HTML page without scripts or external files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from index_builder.metrics.pages import templates_of
from vouch_search import plots

SIZES = {"one": "one image", "few": "2 to 5 images", "many": "more than 5 images"}
"""Size classes of labels, in words."""


def page(content: Mapping[str, Any], public_key: str | None) -> str:
    """Return the page of a certificate's ``content``; ``public_key`` is the signer's key."""
    environment = templates_of("index_builder.certificates")
    environment.filters["number"] = number
    return environment.get_template("certificate.html.jinja").render(
        content=content,
        public_key=public_key,
        sizes=SIZES,
        reliability=plots.svg(
            lambda ax: plots.reliability(content["measured"]["cross_fitted"], ax=ax),
            "Reliability diagram: share of right first results against their match probability",
        ),
        evaluation=measurements(content["measured"]["evaluation"] or {}),
    )


def number(value: float | None) -> str:
    """Format a number: integers with commas, others with 3 decimals, None as a dash."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def measurements(report: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return the numbers of an evaluation as a flat list of names and values."""
    rows = []
    for name, value in report.items():
        label = prefix + name.replace("_", " ")
        if isinstance(value, Mapping):
            rows += measurements(value, f"{label}: ")
        elif isinstance(value, int | float) or value is None:
            rows.append((label, number(value)))
    return rows
