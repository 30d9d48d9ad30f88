"""``vouch-build config``: the file of a build, begun, checked, and in full."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from index_builder.commands.all_steps import AllOptions
from index_builder.commands.command_line import CommandLine
from index_builder.commands.options_class import with_options
from index_builder.configuration.build import in_milvus
from index_builder.configuration.file import effective_file, schema_file, starting_file
from index_builder.encoders.configured import with_dimensions
from index_builder.output import writing
from model_store.errors import OutputError

app = CommandLine(help="Begin, check and print the file of a build.")


@app.command("show")
@with_options(AllOptions)
def show_command(options: AllOptions) -> None:
    """Print every key of a build with its value: of --config, or of options as `all` takes them.

    What is printed is a configuration itself. Nothing is built.
    """
    build = in_milvus(options.build, options.milvus)
    print(effective_file(with_dimensions(build)), end="")


@app.command("init")
def init_command(
    file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("vouch.toml"),
) -> None:
    """Write a commented file for a build of photographs, with every key and its default."""
    with writing(str(file)):
        try:
            with file.open("x", encoding="utf-8") as opened:
                opened.write(starting_file(file.name))
        except FileExistsError as error:
            raise OutputError(f"{file} exists, and is not overwritten. Name another.") from error
    print(file)


@app.command("schema")
def schema_command() -> None:
    """Print the JSON schema of a build's file, by which editors complete and check it."""
    print(schema_file(), end="")
