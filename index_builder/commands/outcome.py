"""Prints the outcome of a build as text or JSON, and checks the requirements of ``--require``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from index_builder.configuration.problems import did_you_mean
from index_builder.progress import console, error_console
from model_store.errors import RequirementNotMet, UsageError
from model_store.messages import OUTCOME_NUMBERS

if TYPE_CHECKING:
    from model_store.records import GalleryOutcome

_COMPARISON = re.compile(r"\s*([a-z_0-9]+)\s*(>=|<=)\s*(\S+)\s*")
_COUNTS = frozenset({"n_queries"})
"""Numbers of an outcome that are counts. All other numbers are shares."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A minimum or maximum for one number of an outcome.

    Attributes
    ----------
    name : one of `OUTCOME_NUMBERS`.
    operator : ``>=`` or ``<=``.
    limit : a share between 0 and 1, or a count.
    """

    name: str
    operator: str
    limit: float

    def shortfall(self, outcome: GalleryOutcome) -> str | None:
        """Return how an outcome fails the requirement; None if the requirement is met.

        If the number is unknown, the requirement is not met.
        """
        value = getattr(outcome, self.name)
        wanted = f"(wanted {self.operator} {self.limit:g})"
        if value is None:
            return f"{self.name} is not known {wanted}"
        met = value >= self.limit if self.operator == ">=" else value <= self.limit
        return None if met else f"{self.name} is {value:.4g} {wanted}"


def parse_requirements(text: str) -> tuple[Requirement, ...]:
    """Read requirements, separated by commas: ``recall_at_1>=0.8,match_share>=0.3``.

    Raises
    ------
    UsageError : a requirement is not a comparison, its name is unknown, or its limit is out of
        range.
    """
    return tuple(_parsed(one) for one in text.split(","))


def _parsed(text: str) -> Requirement:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--require {text.strip()!r} is not a comparison. Write NAME>=NUMBER or NAME<=NUMBER, "
            "for example recall_at_1>=0.8."
        )
    name, operator, number = found.groups()
    if name not in OUTCOME_NUMBERS:
        hint = did_you_mean(name, OUTCOME_NUMBERS)
        raise UsageError(
            f"--require {name!r} is not a number of the outcome.{hint} Accepted: "
            f"{', '.join(OUTCOME_NUMBERS)}."
        )
    try:
        limit = float(number)
    except ValueError:
        limit = math.nan
    most = math.inf if name in _COUNTS else 1.0
    if not 0 <= limit <= most:
        wanted = "a number of at least 0" if name in _COUNTS else "a share between 0 and 1"
        raise UsageError(f"--require {name}{operator}{number}: wanted {wanted}, for example 0.8.")
    return Requirement(name, operator, limit)


RequireOption = Annotated[
    str | None,
    typer.Option(
        "--require",
        help="Requirements on the outcome, for example recall_at_1>=0.8,match_share>=0.3. If a "
        "requirement is not met, nothing is published, and the exit status is 3. The names "
        "are the fields that --json prints.",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print only the outcome on stdout, as one JSON object."),
]

_STYLES = {"fact": "", "warning": "yellow", "failure": "red"}


@dataclass(slots=True)
class OutcomeReport:
    """Checks and shows the outcome of a command.

    Attributes
    ----------
    requirements : see `parse_requirements`.
    as_json : whether to print JSON on stdout instead of sentences.
    to_stdout : whether to print the sentences on stdout; otherwise stdout has only the bundle's
        path.
    table : file with all results; its path is printed if the file exists.
    outcome : the checked outcome.
    """

    requirements: tuple[Requirement, ...]
    as_json: bool
    to_stdout: bool = False
    table: Path | None = None
    outcome: GalleryOutcome | None = None

    @classmethod
    def of(cls, require: str | None, as_json: bool, *, to_stdout: bool = False) -> OutcomeReport:
        """Read the options.

        Raises
        ------
        UsageError : see `parse_requirements`.
        """
        return cls(() if require is None else parse_requirements(require), as_json, to_stdout)

    def check(self, outcome: GalleryOutcome) -> None:
        """Check the requirements before anything is published.

        Raises
        ------
        RequirementNotMet : a requirement is not met; the outcome has been printed.
        """
        self.outcome = outcome
        unmet = [one for one in (each.shortfall(outcome) for each in self.requirements) if one]
        if unmet:
            self.show(unmet=unmet)
            end = "" if self.to_stdout else " Nothing is published."
            raise RequirementNotMet(
                f"The outcome does not meet --require: {', '.join(unmet)}.{end}"
            )

    def show(self, bundle: Path | None = None, unmet: Sequence[str] = ()) -> None:
        """Print the checked outcome, and the path of the published bundle on stdout.

        Parameters
        ----------
        unmet : requirements that are not met.
        """
        assert self.outcome is not None  # noqa: S101 - it is checked before it is shown
        table = self.table if self.table is not None and self.table.exists() else None
        if self.as_json:
            paths = {"bundle": bundle, "report": table}
            shown = {name: None if path is None else str(path) for name, path in paths.items()}
            print(json.dumps({**shown, "unmet": [*unmet], **self.outcome.model_dump()}, indent=1))
            return
        terminal = Console() if self.to_stdout else console
        for line in self.outcome.lines:
            style, where = _STYLES[line.severity], terminal
            if line.severity == "failure" and not self.to_stdout:
                where = error_console  # also with --quiet
            where.print(Text(line.sentence, style), soft_wrap=True, highlight=False)
        if table is not None:
            terminal.print(Text(f"All numbers: {table}"), soft_wrap=True, highlight=False)
        if bundle is not None:
            print(bundle)
