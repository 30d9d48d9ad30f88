"""A run of tests without a mutant: which fail, how long they take, which lines they visit.

What is recorded of a file of tests is kept until it, the room or what all tests share changes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

Lines = dict[str, dict[int, list[str]]]
"""By file and line, the contexts that visited it."""


def coverage_of(paths: Iterable[Path]) -> Coverage:
    """Return a measurement of some files, which keeps what it sees in memory."""
    coverage = Coverage(data_file=None, config_file=False, include=[str(path) for path in paths])
    coverage.set_option("run:disable_warnings", ["no-data-collected"])  # of scripts there is none
    return coverage


def lines_of(coverage: Coverage) -> Lines:
    """Return the lines that were visited, and end the measurement."""
    coverage.stop()
    seen = coverage.get_data()
    return {path: seen.contexts_by_lineno(path) for path in seen.measured_files()}


class Records:
    """What earlier rehearsals have recorded, by file of tests; a folder that outlives the tree.

    Attributes
    ----------
    of_files : by file of tests: which fail, how long they take and which lines they visit.
    """

    def __init__(self, folder: Path, root: Path, sources: Iterable[Path], tests: Iterable[str]):
        self._folder = folder
        shared = [
            *sources,
            *(root / "tests").glob("conftest.py"),
            *(root / "tests/support").rglob("*.py"),
        ]
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(shared)))
        self._names: dict[str, Path] = {}
        self.of_files: dict[str, Any] = {}
        for test in tests:
            own = digest.copy()
            own.update(test.encode() + (root / test).read_bytes())
            self._names[test] = folder / f"{own.hexdigest()[:24]}.json"
            if self._names[test].exists():
                self.of_files[test] = json.loads(self._names[test].read_text("utf-8"))

    def missing(self) -> list[str]:
        """Return the files of tests that have to be rehearsed."""
        return [test for test in self._names if test not in self.of_files]

    def add(self, recorded: Mapping[str, Any]) -> None:
        """Keep a recording, split by files of tests."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for file in self.missing():

            def own(test: str, file: str = file) -> bool:
                return test.partition("::")[0] == file

            self.of_files[file] = {
                "failed": [test for test in recorded["failed"] if own(test)],
                "seconds": {test: s for test, s in recorded["seconds"].items() if own(test)},
                "lines": {
                    path: {line: [*filter(own, tests)] for line, tests in lines.items()}
                    for path, lines in recorded["lines"].items()
                },
            }
            self._names[file].write_text(json.dumps(self.of_files[file]), "utf-8")


class Recorder:
    """A plugin of pytest that notes what tests do."""

    def __init__(self, root: Path, paths: Iterable[Path]) -> None:
        self._root = root
        self._coverage = coverage_of(paths)
        self._failed: set[str] = set()
        self._seconds: Counter[str] = Counter()

    def start(self) -> None:
        """Measure from now on."""
        self._coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Charge what follows to a test."""
        self._coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a part of a test went."""
        self._seconds[report.nodeid] += report.duration  # type: ignore[assignment]
        if report.failed:
            self._failed.add(report.nodeid)

    def recorded(self) -> str:
        """Return all that was noted as JSON, and end the measurement."""
        found = lines_of(self._coverage)
        lines = {str(Path(path).relative_to(self._root)): found[path] for path in found}
        noted = {"failed": sorted(self._failed), "seconds": self._seconds, "lines": lines}
        return json.dumps(noted)


class Rehearsal:
    """What is known of tests before a mutant is tried.

    Attributes
    ----------
    failed : tests that fail without a mutant.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self.failed: list[str] = []
        self._seconds: dict[str, float] = {}
        self._lines: defaultdict[str, defaultdict[int, list[str]]]
        self._lines = defaultdict(lambda: defaultdict(list))
        for record in records:
            self.failed += record["failed"]
            self._seconds |= record["seconds"]
            for path, lines in record["lines"].items():
                for line, tests in lines.items():
                    self._lines[path][int(line)] += tests

    def seconds(self, tests: Iterable[str]) -> float:
        """Return how long some tests took."""
        return sum(self._seconds[test] for test in tests)

    def visitors(self, path: str, lines: Iterable[int], quick_s: float = math.inf) -> list[str]:
        """Return the tests that come by some lines, cheap ones first, then others of their files.

        With ``quick_s``, only tests that come by themselves, each of which takes no longer, and all
        of them no longer than twenty times that.
        Fixtures and what is computed once are charged to the first test that asks for them.
        """
        known = self._lines[path]
        direct = {test for line in lines for test in known.get(line, ())}
        if quick_s < math.inf:
            chosen = [one for one in self.cheap_first(direct) if self._seconds[one] <= quick_s]
            so_far = accumulate(self._seconds[one] for one in chosen)
            return [one for one, s in zip(chosen, so_far, strict=True) if s <= 20 * quick_s]
        shared = {test.partition("::")[0] for test in direct}
        beside = {test for test in self._seconds if test.partition("::")[0] in shared}
        return [*self.cheap_first(direct), *self.cheap_first(beside - direct)]

    def cheap_first(self, tests: Iterable[str]) -> Sequence[str]:
        """Return the tests that pass without a mutant, cheap ones first."""
        passing = {test for test in tests if test in self._seconds} - set(self.failed)
        return sorted(passing, key=lambda test: (self._seconds[test], test))
