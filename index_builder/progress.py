"""Progress bars for a person, silence for a log file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")

console = Console(stderr=True)


def progress_bar() -> Progress:
    """A bar with count, elapsed and remaining time, shown only on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def track(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Pass ``items`` on, moving a bar of ``total`` steps."""
    with progress_bar() as bar:
        yield from bar.track(items, total=total, description=description)
