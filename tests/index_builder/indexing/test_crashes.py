"""The indexer as a process: killed, resumed, and short of space."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from index_builder.indexing.workdir import Work
from tests.torture.crash_indexing import Command, kill_once, prepare


@pytest.fixture
def command(digits_bundle: Path, tmp_path: Path) -> Command:
    prepare(tmp_path / "drawings", 900)
    (tmp_path / "place").mkdir()
    return Command(tmp_path / "drawings", digits_bundle, tmp_path / "place")


def test_a_killed_indexer_ends_with_the_same_bundle(command: Command, tmp_path: Path) -> None:
    whole = Command(command.source, command.encoder, tmp_path / "whole")
    whole.place.mkdir()
    whole.finish()
    work = Work(command.place / "runs" / "crash" / "index")
    moments = (
        work.catalogue.exists,
        lambda: any(work.store.directory.glob("*")),
        work.bundle.exists,
    )
    for moment in moments:
        assert kill_once(command, moment)
    command.finish()
    assert command.made() == whole.made()


def test_a_file_system_without_space_is_a_plain_error(command: Command) -> None:
    """By a limit on the size of files, which strikes wherever one is written."""
    limit = 100 * 2**10
    script = (
        "import resource, runpy, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {resource.RLIM_INFINITY}))\n"
        "sys.argv[0] = 'vouch-build'\n"
        "runpy.run_module('index_builder', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "index", str(command.source), "--name", "crash",
         "--encoder", str(command.encoder), "--provider", "cpu"],
        cwd=command.place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = " ".join(done.stderr.split())
    assert done.returncode == 1
    assert "Traceback" not in said
    assert "Cannot write" in said
    assert "run the same command again" in said
    assert not (command.place / "bundles/crash/CURRENT").exists()
    command.finish()
    assert Work(command.place / "runs/crash/index").summary.exists()
