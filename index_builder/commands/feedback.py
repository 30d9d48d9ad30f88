"""``vouch-build feedback``: exports and imports reviewer decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from index_builder.commands.command_line import CommandLine
from index_builder.output import writing
from model_store.errors import ConfigError, UsageError

Kept = Annotated[Path, typer.Argument(help="Feedback file of the service (VOUCH_FEEDBACK).")]

app = CommandLine(help="Export and import reviewer decisions.")


@app.command("export")
def export_command(
    kept: Kept,
    out: Annotated[Path, typer.Argument(help="File to write, .csv or .jsonl.")],
    gallery: Annotated[str, typer.Option(metavar="NAME", help="Name of the gallery.")],
) -> None:
    """Write all decisions on a gallery, oldest first, including withdrawn decisions."""
    from model_store.feedback import FeedbackLog, require_feedback_file  # noqa: PLC0415 - slow
    from model_store.feedback.exchange import to_csv, to_jsonl  # noqa: PLC0415

    write = {".csv": to_csv, ".jsonl": to_jsonl}[_suffix(out)]
    require_feedback_file(kept)
    log = FeedbackLog(kept)
    found = log.decided(gallery)
    others = [] if found else log.galleries()
    if others:
        raise ConfigError(
            f"{kept} has no decisions on {gallery!r}; it has decisions on "
            f"{', '.join(map(repr, others))}."
        )
    with writing(str(out)):
        out.write_text(write(found), encoding="utf-8")
    print(f"{len(found)} decisions written")


@app.command("import")
def import_command(
    kept: Kept, file: Annotated[Path, typer.Argument(help="File of decisions, .csv or .jsonl.")]
) -> None:
    """Import new decisions from a file; if a line is wrong, no decision is imported."""
    from model_store.feedback import FeedbackLog, require_feedback_file  # noqa: PLC0415 - slow
    from model_store.feedback.exchange import from_csv, from_jsonl  # noqa: PLC0415

    read = {".csv": from_csv, ".jsonl": from_jsonl}[_suffix(file)]
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    decided = read(text)
    if kept.exists():
        require_feedback_file(kept)
    print(f"{FeedbackLog(kept).bring(decided)} of {len(decided)} decisions are new")


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in {".csv", ".jsonl"}:
        raise UsageError(f"{path} has neither suffix .csv nor .jsonl. Name another file.")
    return suffix
