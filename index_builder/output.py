"""Error messages for reading and writing; reports as Markdown tables and HTML pages."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from model_store.errors import DatasetError, OutputError

if TYPE_CHECKING:
    from jinja2 import Environment


T = TypeVar("T")

CALIBRATION_TABLE = "calibration.md"
"""File in the run directory with all results of a calibration."""


@contextmanager
def writing(what: str, kept: str = "") -> Iterator[None]:
    """Convert write errors to `OutputError` with advice.

    Parameters
    ----------
    what : name of the file or directory.
    kept : sentence that the error message contains; it says which work is kept.

    Raises
    ------
    OutputError
    """
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"Cannot write {what}: {why}. {kept or 'No work was started.'} Free disk space, grant "
            "permission or name another directory; then run the same command again."
        ) from error


def read_from(entries: Iterable[T], scratch: Path) -> Iterator[T]:
    """Yield the entries of a source; convert read errors to `DatasetError`.

    Parameters
    ----------
    scratch : directory of unpacked files. An error in this directory is an error of writing, not of
        reading, so the error is not converted.

    Raises
    ------
    DatasetError
    """
    try:
        yield from entries
    except OSError as error:
        name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
        if not name or Path(name).is_relative_to(scratch):
            raise
        raise DatasetError(
            f"{name} cannot be read: {error.strerror}. Grant permission, or name a source without "
            "this file."
        ) from error


def write_table(path: Path, title: str, report: Mapping[str, Any]) -> None:
    """Write all numbers of a report as a Markdown table.

    Raises
    ------
    OutputError : the file cannot be written.
    """
    rows = [f"| {name} | {value} |" for name, value in _rows(report)]
    with writing(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        head = [f"# {title}", "", "| number | value |", "|---|---:|"]
        path.write_text("\n".join([*head, *rows, ""]), encoding="utf-8")


def _rows(report: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return the rows of a table; each value of the nested ``report`` has one row."""
    rows = []
    for name, value in report.items():
        label = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            rows += _rows(value, f"{label}: ")
        elif isinstance(value, list):  # intervals and names are printed, curves are not
            if value and all(isinstance(one, str) for one in value):
                rows.append((label, ", ".join(value)))
            elif len(value) == 2 and all(isinstance(one, float) for one in value):
                rows.append((label, f"{value[0]:.4f} to {value[1]:.4f}"))
        elif isinstance(value, float):
            rows.append((label, f"{value:.4f}"))
        else:
            rows.append((label, "not defined" if value is None else str(value)))
    return rows


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
