"""Error messages for reading and writing; reports as Markdown tables and HTML pages."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from model_store.errors import DatasetError, OutputError
from model_store.files import replacing

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


@contextmanager
def replacing_output(path: Path) -> Iterator[Path]:
    """Yield the file to write the content of ``path`` to; it replaces ``path`` at the end.

    After an error, an earlier file at ``path`` is unchanged. Devices, pipes and links are written
    directly, and so is a file in a folder without permission to write.
    """
    if not _is_replaceable(path):
        yield path
        return
    with replacing(path) as partial:
        yield partial
        if path.exists():
            shutil.copymode(path, partial)


def _is_replaceable(path: Path) -> bool:
    """Return whether a rename can replace ``path`` without a loss."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return True
    is_plain = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
    return is_plain and os.access(path.parent, os.W_OK)


def write_output(path: Path, text: str) -> None:
    """Write the result of a command as UTF-8; an earlier file is replaced only by a whole one.

    Raises
    ------
    OutputError : the file cannot be written; see `replacing_output`.
    """
    with writing(str(path)):
        kept = "No file was written."
        if not _is_replaceable(path):
            kept = "Its content may be incomplete."
        elif path.exists():
            kept = "The earlier file is unchanged."
    with writing(str(path), kept), replacing_output(path) as to:
        to.write_text(text, encoding="utf-8")


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
    write_output(path, "\n".join([*head, *rows, ""]))


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
