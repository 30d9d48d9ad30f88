"""``make mutants``: small faults put into a copy of the code, one at a time; do the tests see them?

A mutant is one change of a kind that goes wrong in practice: a comparison that is off by one, an
argument that is not passed on, a statement that is missing. They are drawn by a seed: from each
room as many, and from each kind in a room. The tests of the room that come by are run on each. A
mutant is killed by the first that fails, or by taking longer than the limit.

    python -m tests.mutants --seed 1 --number 40 --rooms decision access

Strings, annotations, decorators, the words of errors and logging are left alone. A mutant that
changes nothing anybody could see is entered in `equivalent.toml` with the reason; those are
counted apart. `--again` runs what an earlier run's file says has survived.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.util import cache_from_source
from itertools import takewhile
from pathlib import Path

from coverage import CoverageData

from tests.mutants.kinds import Edit, python_edits, required_arguments, script_edits

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
PACKAGES = ("model_store", "service", "index_builder")


@dataclass(frozen=True, slots=True)
class Room:
    """The files that mutants are made in, and the tests that should see them, as patterns."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


CORE = "tests/model_store"
SERVICE = "tests/service"
BUILDER = "tests/index_builder"
PAGE = "tests/end_to_end/test_page"

ROOMS = {
    "page": Room(("service/http/page/*.js",), (f"{PAGE}_words.py", f"{PAGE}.py")),
    "access": Room(
        ("service/access/*.py",),
        (
            f"{SERVICE}/test_access.py",
            f"{SERVICE}/test_keys*.py",
            f"{SERVICE}/test_hosts.py",
            f"{SERVICE}/test_proxies.py",
            f"{SERVICE}/test_rate*.py",
            f"{SERVICE}/test_nonsense_redis.py",
            f"{SERVICE}/test_ways_in.py",
        ),
    ),
    "decision": Room(
        ("model_store/decision/*.py",),
        (
            f"{CORE}/decision/test_*.py",
            f"{CORE}/test_order.py",
            f"{BUILDER}/test_calibration.py",
            f"{BUILDER}/test_outlier_fusion.py",
            f"{BUILDER}/test_feedback.py",
            f"{SERVICE}/test_calibration.py",
            f"{SERVICE}/test_absent_share.py",
        ),
    ),
    "gallery": Room(
        ("model_store/gallery/*.py", "model_store/gallery/[!m]*/*.py"),
        (
            f"{CORE}/test_gallery.py",
            f"{CORE}/test_filters.py",
            f"{CORE}/test_index.py",
            f"{CORE}/test_live_gallery*.py",
            f"{CORE}/test_search.py",
            f"{CORE}/test_compaction.py",
        ),
    ),
    "milvus": Room(("model_store/gallery/milvus/*.py",), (f"{CORE}/test_milvus*.py",)),
    "indexing": Room(
        ("index_builder/indexing/*.py", "index_builder/indexing/sources/*.py"),
        (f"{BUILDER}/indexing/test_*.py", f"{BUILDER}/test_index_settings.py"),
    ),
    "calibration": Room(
        ("index_builder/calibration/*.py",),
        (
            f"{BUILDER}/test_calibration.py",
            f"{BUILDER}/test_evaluation.py",
            f"{BUILDER}/test_feedback.py",
            f"{BUILDER}/test_leave_one_out.py",
            f"{BUILDER}/test_outlier_fusion.py",
            f"{BUILDER}/test_probabilities.py",
            f"{BUILDER}/indexing/test_calibrating.py",
            f"{BUILDER}/indexing/test_holding_out.py",
        ),
    ),
    "posteriors": Room(
        ("index_builder/posteriors/*.py", "index_builder/posteriors/laplace/*.py"),
        (f"{BUILDER}/posteriors/test_*.py", f"{BUILDER}/objectives/test_online_laplace.py"),
    ),
}

STEADY = {"CI": "true"}
"""Lets Hypothesis draw the same examples every time, and take as long as a busy machine needs."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault, and what came of it.

    Attributes
    ----------
    line : of the original file, from 1.
    before, after : the lines that differ, without indentation.
    statement : the line on which its statement begins.
    outcome : ``killed``, ``survived`` or ``equivalent``; empty until it is known.
    by : the test that failed or took too long, or the reason why it is equivalent.
    """

    room: str
    kind: str
    path: str
    line: int
    before: str
    after: str
    statement: int
    source: str
    outcome: str = ""
    by: str = ""

    def __str__(self) -> str:
        lines = [f"  - {line}" for line in self.before.splitlines()]
        lines += [f"  + {line}" for line in self.after.splitlines()]
        found = f"{self.outcome} {self.path}:{self.line} ({self.kind}) {self.by}"
        return "\n".join([found, *lines])


Candidate = tuple[str, Edit]
"""A path and what may be changed there."""


def candidates(room: str) -> dict[str, list[Candidate]]:
    """Return all that may be changed in a room, by kind."""
    python = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    required = required_arguments(python)
    found: defaultdict[str, list[Candidate]] = defaultdict(list)
    for path in files(ROOT, ROOMS[room].sources):
        source = (ROOT / path).read_bytes()
        edits = script_edits(source) if path.endswith(".js") else python_edits(source, required)
        for edit in edits:
            found[edit.kind].append((path, edit))
    return found


def mutant_of(room: str, path: str, edit: Edit) -> Mutant | None:
    """Return the mutant that an edit makes; None if it cannot be compiled or changes nothing."""
    old = (ROOT / path).read_bytes()
    new = old[: edit.begin] + edit.code.encode() + old[edit.end :]
    try:
        if path.endswith(".py") and ast.dump(ast.parse(new)) == ast.dump(ast.parse(old)):
            return None
    except SyntaxError:  # an `elif`, for example, that cannot be missing
        return None
    line, before, after = difference(old.decode(), new.decode())
    return Mutant(room, edit.kind, path, line, before, after, edit.statement, new.decode())


def files(root: Path, patterns: Iterable[str]) -> list[str]:
    """Return the files of a tree that any pattern names, in the order of the patterns."""
    found = (path for pattern in patterns for path in sorted(root.glob(pattern)))
    return list(dict.fromkeys(str(path.relative_to(root)) for path in found))


def difference(old: str, new: str) -> tuple[int, str, str]:
    """Return the first line that differs, and the lines that do, of both."""
    a, b = old.splitlines(), new.splitlines()
    same = takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    begin = sum(1 for _ in same)
    rest = zip(reversed(a[begin:]), reversed(b[begin:]), strict=False)
    after = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))
    lines = [map(str.strip, one[begin : len(one) - after]) for one in (a, b)]
    return begin + 1, "\n".join(lines[0]), "\n".join(lines[1])


def draw(rooms: Sequence[str], number: int, seed: int) -> list[Mutant]:
    """Draw mutants: from each room in turn, of a kind, of a place."""
    generator = random.Random(seed)
    left = {room: candidates(room) for room in rooms}
    drawn: list[Mutant] = []
    while len(drawn) < number:
        room = rooms[len(drawn) % len(rooms)]
        kind = generator.choice(sorted(kind for kind, there in left[room].items() if there))
        there = left[room][kind]
        mutant = mutant_of(room, *there.pop(generator.randrange(len(there))))
        if mutant is not None:
            drawn.append(mutant)
    return sorted(drawn, key=lambda one: list(ROOMS).index(one.room))


Key = tuple[str, str, str]
"""A path, the lines before and the lines after."""


def key_of(entry: Mapping[str, str]) -> Key:
    """Return what a mutant is known by, wherever its line has gone."""
    return entry["path"], entry["before"], entry["after"]


def equivalents() -> dict[Key, str]:
    """Return why mutants are equivalent."""
    entries = tomllib.loads(EQUIVALENT.read_text("utf-8"))["equivalent"]
    return {key_of(entry): entry["reason"] for entry in entries}


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
        if mutant.outcome:
            return mutant
        with self._one() as tree:
            path = tree / mutant.path
            try:
                write(path, mutant.source)
                by = run(self._tests(mutant), tree, self._limit_s, self._bundle)
            finally:
                write(path, (ROOT / mutant.path).read_text("utf-8"))
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

    def _tests(self, mutant: Mutant) -> list[str]:
        """Return the tests that come by a mutant; all of the room where that cannot be said.

        So it is with what runs when a module is imported, and in a process of its own. Those in
        the file that is named as the module come first, the others in the order of the room.
        """
        lines = range(mutant.statement, mutant.line + mutant.before.count("\n") + 1)
        visits = (context for line in lines for context in self._visits[mutant.path].get(line, ()))
        tests = list(dict.fromkeys(re.split(r"[\[|]", context)[0] for context in visits))
        order = files(ROOT, ROOMS[mutant.room].tests)
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
    if "ERROR: not found:" in said:
        raise RuntimeError(said)
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
    return failed[1] if failed else f"pytest ended with {process.returncode}: {said.strip()[-200:]}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Do the tests see small faults?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=40, help="of mutants")
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--jobs", type=int, default=1, help="mutants tried at a time")
    parser.add_argument(
        "--limit", type=float, default=300, help="seconds for the tests of a mutant"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "mutants.json")
    parser.add_argument("--again", type=Path, help="try only what survived in this earlier output")
    return parser.parse_args()


def main() -> None:
    """Draw, try out, and say what has survived."""
    asked = arguments()
    known = equivalents()
    drawn = draw(asked.rooms, asked.number, asked.seed)
    if asked.again:
        before = json.loads(asked.again.read_text("utf-8"))["mutants"]
        alive = {key_of(one) for one in before if one["outcome"] == "survived"}
        drawn = [one for one in drawn if key_of(asdict(one)) in alive]
    for place, one in enumerate(drawn):
        if reason := known.get(key_of(asdict(one))):
            drawn[place] = replace(one, outcome="equivalent", by=reason)
    tried: list[Mutant] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = Trees(Path(folder), asked.jobs, asked.limit)
        for room in {one.room: None for one in drawn if not one.outcome}:
            trees.follow(room)
        with ThreadPoolExecutor(asked.jobs) as pool:
            for one in pool.map(trees.try_out, drawn):
                print(one, flush=True)
                tried.append(one)
    report(tried, asked)


def report(tried: list[Mutant], asked: argparse.Namespace) -> None:
    """Print how many were killed, and write everything to the output."""
    outcomes = Counter(one.outcome for one in tried)
    n = outcomes["killed"] + outcomes["survived"]
    killed = f"{outcomes['killed']} of {n} killed ({outcomes['killed'] / max(n, 1):.0%})"
    print(f"seed {asked.seed}: {killed}, {outcomes['equivalent']} equivalent")
    mutants = [asdict(one) for one in tried]
    for one in mutants:
        del one["source"]
    summary = {"seed": asked.seed, "rooms": asked.rooms, **outcomes, "mutants": mutants}
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(summary, indent=1, ensure_ascii=False), "utf-8")


if __name__ == "__main__":
    main()
