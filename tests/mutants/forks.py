"""``python -m tests.mutants.forks``: mutants in forks of a process that has imported all tests.

`tests.mutants.trees` starts it in a copy of the working tree. The tests of a room are collected
once. Then each mutant that lies in a function gets a fork, where the function is given its other
code, and the tests that come by are run, cheap ones first, until one fails.

Processes that tests start read the mutant's file; the tests that start one are run last. A fork
cannot show what happens when a module is imported: the tests that are to be run anew with the
mutant in its file are said with the result.
"""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import ceil, inf
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.mutants.drawing import Mutant
from tests.mutants.rehearsal import Recorder, Records, Rehearsal, coverage_of, lines_of
from tests.mutants.rooms import ROOT
from tests.mutants.writing import written

REHEARSAL_S = 3600.0
Say = Callable[[Any], None]
Changes = list[tuple[FunctionType, CodeType]]
"""Functions, each with the code that it is given."""


class Forks:
    """A plugin of pytest: instead of running all tests once, it runs some for each mutant."""

    def __init__(self, asked: Mapping[str, Any], say: Say) -> None:
        self._sources = [ROOT / path for path in asked["sources"]]
        self._mutants = [Mutant(**entry) for entry in asked["mutants"]]
        self._limit_s, self._say = float(asked["limit_s"]), say
        self._quick_s = float(asked["quick_s"])
        self._records = Records(Path(asked["records"]), ROOT, self._sources, asked["tests"])
        self._imports = coverage_of(self._sources)
        self._began = False

    def pytest_sessionstart(self) -> None:
        """Import the room, so that no fork reads its files, and note which lines run meanwhile."""
        self._imports.start()
        for path in self._sources:
            if path.suffix == ".py":
                parts = path.relative_to(ROOT).with_suffix("").parts
                importlib.import_module(".".join(parts).removesuffix(".__init__"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Rehearse, then say of each mutant what a fork finds."""
        if self._began:  # in a fork, where pytest's own loop follows
            return None
        self._began = True
        imported = lines_of(self._imports)
        items = {item.nodeid: item for item in session.items}
        if missing := self._records.missing():
            recorder = Recorder(ROOT, self._sources)
            chosen = [item for test, item in items.items() if test.partition("::")[0] in missing]
            recorded = in_fork(partial(rehearse, session, chosen, recorder), REHEARSAL_S)
            self._records.add(json.loads(recorded))
        rehearsal = Rehearsal(self._records.of_files.values())
        self._say(rehearsal.failed)
        # Redis reads no file of ours.
        by_files = {
            test
            for test, one in items.items()
            if one.get_closest_marker("process")
            and "redis_server" not in getattr(one, "fixturenames", ())
        }
        functions = functions_of(self._sources)
        for mutant in self._mutants:
            path = ROOT / mutant.path
            changes = changes_of(path, mutant.source, functions[str(path)])
            lines = lines_of_definition(path, mutant) if not changes else lines_of_mutant(mutant)
            tests = rehearsal.visitors(mutant.path, lines, self._quick_s)
            last = [] if self._quick_s < inf else rehearsal.cheap_first(by_files)
            tests = [*(one for one in tests if one not in by_files), *last]
            at_import = not changes or not imported.get(str(path), {}).keys().isdisjoint(lines)
            by = ""
            if changes and tests:
                chosen, limit_s = [items[one] for one in tests], self._limit(rehearsal, tests)
                with written(path, mutant.source):
                    by = in_fork(partial(first_failure, session, changes, chosen), limit_s)
            others = [] if self._quick_s < inf else rehearsal.cheap_first(items)
            rest = [*tests, *others] if at_import and not by else []
            self._say(
                {"by": by, "rest": [*dict.fromkeys(rest)], "limit_s": self._limit(rehearsal, rest)}
            )
        return True

    def _limit(self, rehearsal: Rehearsal, tests: Iterable[str]) -> float:
        return max(self._limit_s, 5 * rehearsal.seconds(tests))


def lines_of_mutant(mutant: Mutant) -> range:
    """Return the lines from the begin of the statement to what is changed."""
    return range(mutant.statement, mutant.line + mutant.before.count("\n") + 1)


def lines_of_definition(path: Path, mutant: Mutant) -> range:
    """Return the lines of the function that a mutant decorates or gives arguments, or its own."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if first <= mutant.line < node.body[0].lineno:
                    return range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    return lines_of_mutant(mutant)


def rehearse(session: pytest.Session, items: list[pytest.Item], recorder: Recorder) -> str:
    """Run tests without a mutant."""
    session.items[:] = items
    recorder.start()
    session.config.pluginmanager.register(recorder)
    session.config.hook.pytest_runtestloop(session=session)
    return recorder.recorded()


class FirstFailure:
    """A plugin of pytest that ends a session with the name of the first test that fails."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End the session if a part of a test has failed."""
        if report.failed:
            self._session.shouldfail = report.nodeid


def first_failure(session: pytest.Session, changes: Changes, items: list[pytest.Item]) -> str:
    """Return the first test that fails with functions changed; empty if none does."""
    for function, code in changes:
        function.__code__ = code
    session.items[:] = items
    session.config.pluginmanager.register(FirstFailure(session))
    try:
        session.config.hook.pytest_runtestloop(session=session)
    except session.Failed as failed:
        return str(failed)
    return ""


def in_fork(work: Callable[[], str], limit_s: float) -> str:
    """Return what a fork of this process returns, or how it ended otherwise."""
    with tempfile.TemporaryFile() as said:
        process = os.fork()
        if process == 0:
            try:
                os.setsid()
                at_most_s = ceil(limit_s) + 1  # nothing loops on if this process is ended first
                resource.setrlimit(resource.RLIMIT_CPU, (at_most_s, at_most_s))
                text = work()
            except BaseException as error:  # also what only ends a process
                text = repr(error)
            said.write(text.encode())
            said.flush()
            os._exit(0)
        watched = os.pidfd_open(process)
        ended = bool(select.select([watched], [], [], limit_s)[0])
        os.close(watched)
        with suppress(ProcessLookupError):  # the fork, and what its tests have started
            os.killpg(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if not ended:
            return f"more than {limit_s:.0f} s"
        if status:
            return f"ended with status {status}"
        said.seek(0)
        return said.read().decode()


def functions_of(paths: Iterable[Path]) -> dict[str, list[FunctionType]]:
    """Return all functions that live in this process, by the file that they are from."""
    gc.unfreeze()  # what is frozen is not found
    found: dict[str, list[FunctionType]] = {str(path): [] for path in paths}
    for one in gc.get_objects():
        if type(one) is FunctionType and one.__code__.co_filename in found:
            found[one.__code__.co_filename].append(one)
    gc.freeze()
    return found


def changes_of(path: Path, source: str, functions: Sequence[FunctionType]) -> Changes:
    """Return what a mutant changes in the functions of a file; none if not just them."""
    if path.suffix != ".py" or without_bodies(source) != without_bodies(path.read_text("utf-8")):
        return []
    old, new = (codes_of(text, path) for text in (path.read_text("utf-8"), source))
    changes = []
    for function in functions:
        name, line = function.__code__.co_qualname, function.__code__.co_firstlineno
        places = [place for place, one in enumerate(old[name]) if one.co_firstlineno == line]
        if places and len(old[name]) == len(new[name]):
            code = new[name][places[0]]
            if code.co_freevars != function.__code__.co_freevars:
                return []
            changes.append((function, code))
    return changes


def without_bodies(source: str) -> str:
    """Return what a file says apart from the bodies of its functions."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
    return ast.dump(tree)


def codes_of(source: str, path: Path) -> defaultdict[str, list[CodeType]]:
    """Return the codes of a file, by qualified name."""
    found: defaultdict[str, list[CodeType]] = defaultdict(list)
    left: list[CodeType] = [compile(source, str(path), "exec", dont_inherit=True)]
    for code in left:
        inner = [one for one in code.co_consts if isinstance(one, CodeType)]
        left.extend(inner)
        for one in inner:
            found[one.co_qualname].append(one)
    return found


def main() -> None:
    """Collect the tests that a file names, and say on a pipe what forks find of its mutants."""
    asked = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={asked['temporary']}"]
    with os.fdopen(int(sys.argv[2]), "w", buffering=1) as pipe:
        forks = Forks(asked, lambda said: print(json.dumps(said), file=pipe))
        sys.exit(pytest.main([*options, *asked["tests"]], plugins=[forks]))


if __name__ == "__main__":
    main()
