"""Copies of the working tree, and the tests that are run in them."""

from __future__ import annotations

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path

from coverage import CoverageData

from tests.mutants.drawing import Mutant
from tests.mutants.rooms import ROOMS, ROOT, files

STEADY = {"CI": "true"}
"""Lets Hypothesis draw the same examples every time, and take as long as a busy machine needs."""


class Trees:
    """Copies of the working tree, one for each job, in which mutants live one at a time."""

    def __init__(self, folder: Path, number: int, limit_s: float) -> None:
        self._limit_s = limit_s
        self._visits: dict[str, dict[int, list[str]]] = {}
        self._bundle: Path | None = None
        self._free: queue.Queue[Path] = queue.Queue()
        for place in range(number):
            self._free.put(copy_of_the_tree(folder / str(place)))

    def try_out(self, mutant: Mutant) -> Mutant:
        """Run the tests that come by on a mutant."""
        with self._one() as tree:
            path = tree / mutant.path
            as_it_is = path.read_text("utf-8")  # not the working tree's: that may have gone on
            try:
                write(path, mutant.source)
                by = run(self._tests(mutant, tree), tree, self._limit_s, self._bundle)
            finally:
                write(path, as_it_is)
        return replace(mutant, outcome="killed" if by else "survived", by=by)

    def follow(self, room: str) -> None:
        """Find out which tests come by which lines of a room; exit if any fails as it is."""
        package = ROOMS[room].sources[0].partition("/")[0]
        options = [f"--cov={package}", "--cov-context=test", "--cov-report="]
        with self._one() as tree:
            tests = files(tree, ROOMS[room].tests)
            if failed := run([*options, *tests], tree, 10 * self._limit_s, self._bundle):
                sys.exit(f"The tests of the room {room} fail without a mutant: {failed}")
            self._bundle = next((tree / "build" / "tests").glob("[0-9a-f]*/"), None)
            seen = CoverageData(str(tree / ".coverage"))
            seen.read()
            for path in files(tree, ROOMS[room].sources):
                self._visits[path] = seen.contexts_by_lineno(str(tree / path))

    def _tests(self, mutant: Mutant, tree: Path) -> list[str]:
        """Return the tests that come by a mutant; all of the room where that cannot be said.

        So it is with what runs when a module is imported, and in a process of its own. Those in
        the file that is named as the module come first, the others in the order of the room.
        """
        lines = range(mutant.statement, mutant.line + mutant.before.count("\n") + 1)
        visits = (context for line in lines for context in self._visits[mutant.path].get(line, ()))
        tests = list(dict.fromkeys(re.split(r"[\[|]", context)[0] for context in visits))
        order = files(tree, ROOMS[mutant.room].tests)  # not of the working tree, as above
        if not all(tests) or not tests:
            tests = order
        named = Path(mutant.path).stem
        return sorted(tests, key=lambda test: (named not in test, order.index(test.split("::")[0])))

    @contextmanager
    def _one(self) -> Iterator[Path]:
        tree = self._free.get()
        try:
            yield tree
        finally:
            self._free.put(tree)


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


def write(path: Path, source: str) -> None:
    """Write a module, and forget how it was compiled."""
    path.write_text(source, "utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run(arguments: list[str], tree: Path, limit_s: float, bundle: Path | None) -> str:
    """Return the test that fails first, or that it took too long; empty if none does.

    The tests' bundle is the one given, so that it is not built again for every mutant.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=tree,
        env=os.environ
        | {"PYTHONPATH": str(tree), "VOUCH_BUILT_DIGITS": str(bundle or ""), **STEADY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"more than {limit_s:.0f} s"
    finally:
        with suppress(ProcessLookupError):  # the tests, and what they have left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0:
        return ""
    if re.search("^ERROR: (not found:|file or directory not found:)", said, re.MULTILINE):
        raise RuntimeError(said)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    return failed[1] if failed else f"pytest ended with {process.returncode}: {said.strip()[-200:]}"
