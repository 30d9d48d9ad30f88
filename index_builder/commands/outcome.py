"""Prints the outcome of a build as text or JSON, and checks its requirements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from index_builder.configuration.requirements import Requirement, parse_requirements
from index_builder.progress import console, error_console
from model_store.errors import RequirementNotMet

if TYPE_CHECKING:
    from model_store.records import GalleryOutcome

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
