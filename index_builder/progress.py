"""Progress bars for a person, silence for a log file."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")

console = Console(stderr=True)


def say_what_is_next(bundles: Path) -> None:
    """Tell how to serve what was just published in the directory ``bundles``."""
    command = shlex.join(["vouch-serve", "--bundle", str(bundles)])
    console.print(f"Next: {command}", soft_wrap=True, markup=False, highlight=False)


class RateColumn(ProgressColumn):
    """A progress column with the number of steps done in a second."""

    def render(self, task: Task) -> Text:
        """Return the rate of ``task`` as text."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s")


def progress_bar() -> Progress:
    """A bar with count, rate, elapsed and remaining time, shown only on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
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
