"""``vouch-build index``: indexes a collection of images, or the gallery of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.table import Table

from index_builder.commands.index_options import IndexOptions
from index_builder.commands.options_class import with_options
from index_builder.commands.outcome import OutcomeReport
from index_builder.commands.steps import opened_run, step_of
from index_builder.configuration.build import in_database, load_config
from index_builder.progress import console, say_what_is_next, timed_step, working

if TYPE_CHECKING:
    from index_builder.datasets.image_files import LeftOut
    from index_builder.indexing.collection import Indexing


@with_options(IndexOptions)
def index_command(options: IndexOptions) -> None:
    """Embed a collection and publish it as a bundle, or run the step of a build.

    The bundle contains the encoder of the collection. A collection of vectors (--encoder-name) has
    no encoder, so its queries are vectors. After an interruption, the same command continues and
    ends with the same bundle.
    """
    options.require_consistent()
    shown = OutcomeReport.of(options.require, options.as_json)
    if options.source is not None:
        with working("loading libraries"):
            indexing = options.indexing(options.source)
        if options.dry_run:
            _preview(indexing)
            return
        shown.show(run_index(indexing, shown))
        say_what_is_next(indexing.bundles)
    elif options.config is not None:
        build = in_database(load_config(options.config), options.database)
        with opened_run(build, options.run) as run:
            index_step = step_of("index_step")
            with timed_step("index"):
                index_step(build, run)


def _preview(indexing: Indexing) -> None:
    """Print the estimates of a dry run."""
    with working("looking through the source"):
        from index_builder.indexing.dry_run import inspect_collection  # noqa: PLC0415

        preview = inspect_collection(indexing)
    _print_table("before anything is embedded", preview.rows())
    _say(preview.left_out)


def run_index(indexing: Indexing, shown: OutcomeReport) -> Path:
    """Index a collection and return its bundle.

    Raises
    ------
    VouchError : indexing fails, or the outcome does not meet --require.
    """
    from index_builder.indexing.collection import index_collection  # noqa: PLC0415
    from index_builder.indexing.workdir import Work  # noqa: PLC0415

    shown.table = Work(indexing.directory).calibration_table if indexing.calibrate else None
    try:
        with working("indexing"):
            outcome = index_collection(indexing, shown.check)
    except KeyboardInterrupt:
        console.print("interrupted; the same command continues from here")
        raise typer.Exit(130) from None
    _print_table("indexed", outcome.rows(indexing.directory))
    _say(outcome.left_out)
    return outcome.bundle


def _say(left_out: LeftOut) -> None:
    """Print the reasons why files were left out."""
    for sentence in left_out.sentences:
        console.print(f"[yellow]{escape(sentence)}[/yellow]", soft_wrap=True)


def _print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    table = Table(title, "")
    for name, value in rows:
        table.add_row(name, escape(value))
    console.print(table)
