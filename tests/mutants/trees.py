"""A copy of the working tree, and the tests that are run in it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.mutants.drawing import Mutant
from tests.mutants.rooms import ROOT, Room, files
from tests.mutants.writing import written

OPTIONS = ("-q", "-p", "no:cacheprovider")
STARTING_S = 60.0
STEADY = {"CI": "true", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Lets Hypothesis draw the same examples every time, and take as long as a busy machine needs.
Libraries' threads would not be there in a fork."""


class Tree:
    """A copy of the working tree, in which the mutants of a room are tried one at a time."""

    def __init__(
        self, root: Path, limit_s: float, records: Path, quick_s: float = math.inf
    ) -> None:
        self._root, self._limit_s, self._records = root, limit_s, records
        self._quick_s = quick_s
        self._build = root / "build"
        self._build.mkdir(exist_ok=True)
        self._output = self._build / "output"
        self._bundle: Path | None = None

    def try_out(self, room: Room, mutants: Sequence[Mutant]) -> Iterator[Mutant]:
        """Try mutants in forks, then in their files where that may tell more."""
        found = self._forks(room, mutants)
        failing = next(found)
        if failing:
            print(f"Left out, since they fail without a mutant: {' '.join(failing)}", flush=True)
        self._bundle = next((self._build / "tests").glob("[0-9a-f]*/"), None)
        left: list[tuple[Mutant, Any]] = []
        for mutant, one in zip(mutants, found, strict=True):
            if one["rest"]:
                left.append((mutant, one))
            else:
                yield judged(mutant, one["by"])
        for mutant, one in left:
            yield judged(mutant, self._in_its_file(mutant, one["rest"], failing, one["limit_s"]))

    def _forks(self, room: Room, mutants: Sequence[Mutant]) -> Iterator[Any]:
        """Return the tests that fail without a mutant, then what forks find of each mutant."""
        asked = {
            "mutants": [asdict(one) for one in mutants],
            "sources": files(self._root, room.sources),
            "tests": files(self._root, room.tests),
            "limit_s": self._limit_s,
            "quick_s": self._quick_s,
            "records": str(self._records),
            "temporary": str(self._build / "temporary"),
        }
        (self._build / "asked.json").write_text(json.dumps(asked), "utf-8")
        out, into = os.pipe()
        module = ["tests.mutants.forks", str(self._build / "asked.json"), str(into)]
        with os.fdopen(out) as said, self._started(module, into) as process:
            os.close(into)
            yield from map(json.loads, said)
            if process.wait():
                raise RuntimeError(f"No mutant can be tried:\n{self._output.read_text()[-2000:]}")

    def _in_its_file(
        self, mutant: Mutant, tests: Sequence[str], failing: Sequence[str], limit_s: float
    ) -> str:
        """Return the first test that fails with the mutant in its file; empty if none does."""
        functions = dict.fromkeys(test.partition("[")[0] for test in tests)
        deselected = [f"--deselect={test}" for test in failing]
        try:
            with (
                written(self._root / mutant.path, mutant.source),
                self._started(["pytest", "-x", *OPTIONS, *deselected, *functions]) as process,
            ):
                code = process.wait(STARTING_S + limit_s)
        except subprocess.TimeoutExpired:
            return f"more than {limit_s:.0f} s"
        said = self._output.read_text("utf-8", "replace")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
        return "" if code == 0 else failed[1] if failed else f"ended with {code}: {said[-200:]}"

    @contextmanager
    def _started(self, module: Sequence[str], *kept: int) -> Iterator[subprocess.Popen[bytes]]:
        """Run a module in the tree; end it, and what its tests have left behind, at the end."""
        # The tests' bundle is the one that is built, so that it is not built for every mutant.
        given = {"VOUCH_BUILT_DIGITS": str(self._bundle)} if self._bundle else {}
        with self._output.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", *module],
                cwd=self._root,
                env=os.environ | {"PYTHONPATH": str(self._root)} | given | STEADY,
                pass_fds=kept,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def judged(mutant: Mutant, by: str) -> Mutant:
    """Return a mutant with its outcome."""
    return replace(mutant, outcome="killed" if by else "survived", by=by)


def copy_of_the_tree(target: Path) -> Path:
    """Copy what git knows or would add, and the bundle of the tests where it is built already."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")
    for name in names:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    if (ROOT / "build" / "tests").exists():
        shutil.copytree(ROOT / "build" / "tests", target / "build" / "tests")
    return target
