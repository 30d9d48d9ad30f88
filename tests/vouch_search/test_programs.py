"""The installed programs, where an extra is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.process
@pytest.mark.parametrize(
    ("program", "module", "extra"),
    [
        ("build", "typer", "build"),
        ("serve", "limits", "serve"),
        ("keys", "limits", "serve"),
        ("mcp", "mcp", "mcp"),
    ],
)
def test_program_without_its_extra_ends_with_the_command_that_installs_it(
    program: str, module: str, extra: str
) -> None:
    hide = f"u.find_spec = lambda name: None if name == {module!r} else of(name)"
    start = f"from vouch_search.programs import {program}; {program}()"
    command = f"import importlib.util as u; of = u.find_spec; {hide}; {start}"
    done = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: {module} is not installed. In a checkout of Vouch: pip install '.[{extra}]'. "
        f"From a package index that has it: pip install 'vouch-search[{extra}]'.\n"
    )
