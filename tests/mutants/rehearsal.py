"""A run of tests without a mutant: which fail, how long they take, which lines they visit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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


class Recorder:
    """A plugin of pytest that notes what tests do."""

    def __init__(self, paths: Iterable[Path]) -> None:
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
        lines = lines_of(self._coverage)
        noted = {"failed": sorted(self._failed), "seconds": self._seconds, "lines": lines}
        return json.dumps(noted)


class Rehearsal:
    """What is known of tests before a mutant is tried.

    Attributes
    ----------
    failed : tests that fail without a mutant.
    """

    def __init__(self, recorded: Mapping[str, Any]) -> None:
        self.failed: list[str] = recorded["failed"]
        self._seconds: dict[str, float] = recorded["seconds"]
        self._lines: dict[str, dict[str, list[str]]] = recorded["lines"]

    def seconds(self, tests: Iterable[str]) -> float:
        """Return how long some tests took."""
        return sum(self._seconds[test] for test in tests)

    def visitors(self, path: Path, lines: Iterable[int]) -> list[str]:
        """Return the tests that come by some lines, cheap ones first, then others of their files.

        Fixtures and what is computed once are charged to the first test that asks for them.
        """
        known = self._lines.get(str(path), {})
        direct = {test for line in lines for test in known.get(str(line), ())}
        shared = {test.partition("::")[0] for test in direct}
        beside = {test for test in self._seconds if test.partition("::")[0] in shared}
        return [*self.cheap_first(direct), *self.cheap_first(beside - direct)]

    def cheap_first(self, tests: Iterable[str]) -> Sequence[str]:
        """Return the tests that pass without a mutant, cheap ones first."""
        passing = {test for test in tests if test in self._seconds} - set(self.failed)
        return sorted(passing, key=lambda test: (self._seconds[test], test))
