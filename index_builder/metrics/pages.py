"""Self-contained HTML pages: templates and number formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


def templates_of(package: str) -> Environment:
    """Return the templates of a package; an undefined name in a template raises an error."""
    # An operator's commands import this module; their image has no jinja2.
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

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
