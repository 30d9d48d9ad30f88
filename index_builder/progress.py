"""Progress, notes and log messages of commands, on standard error."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")

console = Console(stderr=True)
"""The console for notes, tables and progress. With ``--quiet``, nothing is printed on it."""

error_console = Console(stderr=True)
"""The console for errors, which are always printed."""


def note(message: str) -> None:
    """Print a note word for word; the terminal breaks its lines."""
    console.print(message, markup=False, soft_wrap=True)


def warn(message: str) -> None:
    """Print a warning word for word, in yellow."""
    console.print(f"[yellow]{escape(message)}[/yellow]", soft_wrap=True)


@dataclass
class _Output:
    """The verbosity of a running command."""

    active: bool = False
    verbose: bool = False
    quiet: bool = False

    def shows(self, logger: str, level: int) -> bool:
        """Return whether to show a message: warnings of Vouch, and errors of any library."""
        if not self.active or self.verbose or level >= logging.ERROR:
            return True
        package = logger.removeprefix("vouch_search.").partition(".")[0]  # as installed
        return package in {"index_builder", "model_store"} and not self.quiet


_output = _Output()


class _Logger(logging.Logger):
    """A logger that hides messages even if a library sets its own handlers or level."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's
        """Return whether to show messages of this level."""
        return super().isEnabledFor(level) and _output.shows(self.name, level)


@contextmanager
def messages_shown() -> Iterator[None]:
    """Show warnings of Vouch and errors of other libraries, until `set_output` changes the rule.

    The rule also applies to libraries that are imported later and configure their own logging.
    """
    _output.active, _output.verbose, _output.quiet, console.quiet = True, False, False, False
    handler = RichHandler(console=console, show_time=False, show_path=False)
    handler.addFilter(lambda record: _output.shows(record.name, record.levelno))
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    before = logging.getLoggerClass()
    logging.setLoggerClass(_Logger)
    logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        logging.setLoggerClass(before)
        _output.active = False


def set_output(*, verbose: bool = False, quiet: bool = False) -> None:
    """Change the verbosity.

    Parameters
    ----------
    verbose : show messages of all loggers, also of other libraries.
    quiet : show only results and errors.
    """
    if verbose:
        _output.verbose = True
        logging.root.setLevel(logging.INFO)
    if quiet:
        _output.quiet = console.quiet = True


def is_verbose() -> bool:
    """Return whether --verbose is set."""
    return _output.verbose


def say_what_is_next(bundles: Path) -> None:
    """Print the command that serves the directory ``bundles``."""
    command = shlex.join(["vouch-serve", "--bundle", str(bundles)])
    console.print(f"Next: {command}", soft_wrap=True, markup=False, highlight=False)


class RateColumn(ProgressColumn):
    """A progress column with the number of steps per second."""

    def render(self, task: Task) -> Text:
        """Return the rate of ``task`` as text."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.1f}/s")


def progress_bar() -> Progress:
    """Return a bar with count, rate, elapsed and remaining time, shown only on a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def track(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Yield ``items`` and advance a progress bar of ``total`` steps."""
    with progress_bar() as bar:
        yield from bar.track(items, total=total, description=description)


def track_parts(n_items: int, size: int, description: str) -> Iterator[int]:
    """Yield the first position of each part of ``size`` items, and advance a progress bar."""
    with progress_bar() as bar:
        task = bar.add_task(description, total=n_items)
        for start in range(0, n_items, size):
            yield start
            bar.advance(task, min(size, n_items - start))


def waiting_for(items: Iterable[T], what: str) -> Iterator[T]:
    """Yield ``items``; until the next item is ready, `working` shows ``what``."""
    remaining = iter(items)
    while True:
        with working(what):
            found = next(remaining, None)
        if found is None:
            return
        yield found


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show ``what`` and the elapsed time on a terminal, if the number of steps is unknown.

    Progress bars of `track` appear below this line.
    """
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        shown.add_task(escape(what), total=None)
        yield


@contextmanager
def timed_step(name: str) -> Iterator[None]:
    """Show that a step is running, and print its duration at the end.

    If the output is not a terminal, a line is also printed at the start. A step that hangs is then
    visible.
    """
    started = time.perf_counter()
    if not console.is_terminal:
        console.print(f"{name} …", markup=False, highlight=False)
    with working(name):
        yield
    seconds = time.perf_counter() - started
    console.print(f"{name} … {in_words(seconds)}", markup=False, highlight=False)


def in_words(seconds: float) -> str:
    """Format a duration: 3.2 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
