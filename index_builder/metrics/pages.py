"""Pages of HTML that need nothing else: their templates, and how numbers are printed in them."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates_of(package: str) -> Environment:
    """Return the templates of a package; a name that they lack is an error."""
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
    """Return a share as a page prints it."""
    return "–" if value is None else f"{100 * value:.1f} %"
