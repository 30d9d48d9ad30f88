"""Self-contained HTML pages: templates and number formats."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates_of(package: str) -> Environment:
    """Return the templates of a package; an undefined name in a template raises an error."""
    environment = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment


def percent(value: float | None) -> str:
    """Format a share as a percentage; None becomes a dash."""
    return "–" if value is None else f"{100 * value:.1f} %"
