"""``vouch-build config``: create, check and print the configuration file of a build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from index_builder.commands.all_steps import AllOptions
from index_builder.commands.command_line import CommandLine
from index_builder.commands.options_class import with_options
from index_builder.configuration.build import in_database
from index_builder.configuration.file import effective_file, schema_file, starting_file
from index_builder.encoders.configured import with_dimensions
from index_builder.output import writing
from model_store.errors import OutputError

app = CommandLine(help="Create, check and print the configuration file of a build.")


@app.command("show")
@with_options(AllOptions)
def show_command(options: AllOptions) -> None:
    """Print the whole configuration of a build, from --config or from the options of `all`.

    The output is a valid configuration file. Nothing is built.
    """
    build = in_database(options.build, options.database)
    print(effective_file(with_dimensions(build)), end="")


@app.command("init")
def init_command(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("vouch.toml"),
) -> None:
    """Write a commented configuration file for photographs, with all keys and defaults."""
    with writing(str(file)):
        try:
            with file.open("x", encoding="utf-8") as opened:
                opened.write(starting_file(file.name))
        except FileExistsError as error:
            raise OutputError(
                f"{file} already exists and is not overwritten. Name another file."
            ) from error
    print(file)


@app.command("schema")
def schema_command() -> None:
    """Print the JSON schema of a configuration file, for completion and checks in editors."""
    print(schema_file(), end="")
