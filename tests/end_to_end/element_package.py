"""The npm package of ``<vouch-search>``, from a copy of its sources and of the page's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import service

SERVICE = Path(service.__file__).parent
OF_NPM = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH")
UNREACHABLE = (*OF_NPM, "Failed to fetch")


def run(command: Sequence[str], place: Path, *, may_fail: bool = False) -> str:
    """Return what a command printed in ``place``; it finds the programs of this environment first.

    Raises AssertionError if the command fails, unless it ``may_fail``. Skips the test if a package
    manager reaches no registry.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    program = shutil.which(command[0], path=env["PATH"]) or command[0]
    done = subprocess.run(
        [program, *command[1:]], cwd=place, env=env, capture_output=True, text=True, check=False
    )
    tool = Path(program).name
    if tool in {"npm", "uv"} and any(code in done.stderr for code in UNREACHABLE):
        pytest.skip(f"{tool} reaches no registry: {done.stderr.strip().splitlines()[-1]}")
    assert may_fail or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(place: Path) -> Path:
    """Copy the sources below ``place``, install what they need; return the package's folder."""
    shutil.copytree(SERVICE / "http" / "page", place / "http" / "page")
    package = place / "client" / "element"
    ignored = shutil.ignore_patterns("node_modules", "dist")
    shutil.copytree(SERVICE / "client" / "element", package, ignore=ignored)
    run(["npm", "ci", "--prefer-offline", "--no-audit", "--no-fund", "--ignore-scripts"], package)
    return package
