"""``vouch-build`` in the process of the tests: importing torch takes longer than most commands."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from index_builder.__main__ import main


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def vouch_build(*arguments: str, cwd: Path) -> Done:
    """Run the command as from a shell in ``cwd``."""
    said, complained = io.StringIO(), io.StringIO()
    status = 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
        patch.object(sys, "argv", ["vouch-build", *arguments]),
    ):
        try:
            main()
        except SystemExit as end:
            status = int(end.code or 0)
    return Done(status, said.getvalue(), complained.getvalue())
