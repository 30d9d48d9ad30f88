"""The options of `vouch-build`, as its help lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from index_builder.commands.app import app
from index_builder.commands.index import IndexOptions
from tests.support.narrowing import instance_of


def commands(group: TyperGroup, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command, those of groups too, by the words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS = dict(commands(instance_of(TyperGroup, get_command(app))))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_option_says_what_it_does(name: str) -> None:
    assert COMMANDS[name].help
    assert [option.name for option in COMMANDS[name].params if not option.help] == []


def test_the_options_of_index_are_the_fields_of_their_class() -> None:
    index = COMMANDS["index"]
    defaults = {name: field.default for name, field in IndexOptions.model_fields.items()}
    shared = {"verbose": False, "quiet": False}
    assert {option.name: option.default for option in index.params} == defaults | shared
