"""`make mutants` makes the faults that it says, and only such as a test could see."""

from __future__ import annotations

import ast
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.mutants.drawing import Mutant, draw, equivalents, found_again
from tests.mutants.kinds import ENDS, closed_choices, python_edits, script_edits
from tests.mutants.rehearsal import coverage_of, lines_of
from tests.mutants.results import Results
from tests.mutants.rooms import ROOMS, ROOT, Room, files
from tests.mutants.trees import Tree


def mutants(source: str, kind: str) -> list[str]:
    """All mutants of a kind."""
    data = source.encode()
    found = script_edits(data) if "const" in source else python_edits(data, {"f": {"must"}})
    return [
        (data[: one.begin] + one.code.encode() + data[one.end :]).decode()
        for one in found
        if one.kind == kind
    ]


@pytest.mark.parametrize(
    ("kind", "source", "wanted"),
    [
        ("comparison", "κ = a >= b", ["κ = a > b"]),
        ("and/or", "x = a and b", ["x = (a or b)"]),
        ("not", "x = not a", ["x = (a)"]),
        ("arithmetic", "x = a * b", ["x = (a / b)"]),
        ("arithmetic", "x = 'a' + b", []),
        ("constant", "x = 1 if y else 0.5", ["x = 2 if y else 0.5", "x = 1 if y else 1.0"]),
        ("constant", "x = rows[0]", []),
        ("true/false", "x = True", ["x = False"]),
        ("branch", "x = a if b else c", ["x = (c if b else a)"]),
        ("entry", "x = {'a': b, 'c': d}", ["x = {'c': d}", "x = {'a': b}"]),
        ("slice", "x = rows[:n]", ["x = rows[:]"]),
        ("function", "x = rows.sum() + sum(a)", ["x = rows.mean() + sum(a)"]),
        ("function", "x = min(a, b)", ["x = max(a, b)"]),
        ("off by one", "x = a < b", ["x = a + 1 < b", "x = a - 1 < b"]),
        ("neighbour", "x = a == b", [f"x = (str(a).{end}(str(b)))" for end in ENDS]),
        ("neighbour", "x = a != b", [f"x = (not str(a).{end}(str(b)))" for end in ENDS]),
        ("neighbour", "x = a == 1", []),
        ("neighbour", "x = a in b", [
            f"x = (any(str(a).{end}(str(known)) for known in b))" for end in ENDS]),
        ("neighbour", "x = P.fullmatch(a)", ["x = P.match(a)"]),
        ("neighbour", "x = fnmatchcase(a, b)", ["x = str(a).startswith(str(b).rstrip('*'))"]),
        ("one bound", "x = max(a, b)", ["x = (a)", "x = (b)"]),
        ("one bound", "x = 1 <= a < b", ["x = 1 <= a", "x = a < b"]),
        ("one bound", "x = a and b or c", [
            "x = ((c))", "x = ((a and b))", "x = ((b)) or c", "x = ((a)) or c"]),
        ("scope", "@get(requires('write'))\ndef f(): ...", [
            f"@get(requires('{one}'))\ndef f(): ..." for one in ("review", "admin")]),
        ("scope", "x = requires('read')", ["x = requires('review')"]),
        ("argument", "x = f(must=1, may=2)", ["x = f(must=1)"]),
        ("statement", "g(a)\nlog.info('a')\nx = b", ["pass\nlog.info('a')\nx = b"]),
        ("guard", "if a:\n    raise B(c)", ["pass"]),
        ("return", "def f(x: A) -> A:\n    return g(x)", ["def f(x: A) -> A:\n    return x"]),
        ("comparison", "const x = a > 1; // a > 1", ["const x = a >= 1; // a > 1"]),
        ("statement", "const x = 1;\n  g();\n  g(\n    h());", ["const x = 1;\n\n  g(\n    h());"]),
        ("guard", "const f = () => {\n  if (a) return;\n}", ["const f = () => {\n\n}"]),
    ],
)  # fmt: skip
def test_a_piece_of_code_has_these_mutants(kind: str, source: str, wanted: list[str]) -> None:
    assert mutants(source, kind) == wanted


PACKAGE = """
Kind = Literal["image", "text"]
LARGEST = 3
FALSE, TRUE = range(2)
def is_known(code: int, kind: Kind, name: str, host): ...
"""


@pytest.mark.parametrize(
    ("source", "n_mutants"),
    [
        ("x = one.kind == 'image'", 0),
        ("x = asked in {'image', 'text'}", 0),
        ("x = code == found", 0),
        ("x = rows.shape == wanted", 0),
        ("x = found in (LARGEST, 4)", 0),
        ("x = found in (FALSE, TRUE)", 0),
        ("x = self._n_items == found", 0),
        ("x = is_known in checks", 0),
        ("x = '*' in names", 0),
        ("x = name in {'image', 'text'}", 2),
        ("x = one.title == 'video'", 2),
        ("x = host in known", 2),
        ("x = host == name", 2),
    ],
)
def test_longer_names_are_tried_only_where_a_stranger_chooses_one(
    tmp_path: Path, source: str, n_mutants: int
) -> None:
    (tmp_path / "package.py").write_text(PACKAGE, "utf-8")
    closed = closed_choices([tmp_path / "package.py"])
    found = [one.kind for one in python_edits(source.encode(), {}, closed)]
    assert found.count("neighbour") == n_mutants


@pytest.mark.parametrize(
    "source",
    [
        '"""Words of 1 module."""',
        "__all__ = ['a', 'b'][:1]",
        "raise A(1 + 1)",
        "log.info(1 > 2)",
        "x: A[1] | None",
        "@a(1)\nclass B(C[1]): ...",
        "def __repr__(self):\n    return 1 > 2",
    ],
)
def test_words_and_types_have_none(source: str) -> None:
    assert list(python_edits(source.encode(), {})) == []


@pytest.mark.slow
def test_a_seed_draws_the_same_mutants_and_each_of_them_can_be_compiled() -> None:
    drawn = draw(["access", "page"], 20, seed=3)
    assert drawn == draw(["access", "page"], 20, seed=3)
    assert len({one.source for one in drawn}) == 20
    for one in drawn:
        original = (ROOT / one.path).read_text("utf-8")
        assert one.source != original
        assert original.splitlines()[one.line - 1].strip() == one.before.splitlines()[0]
        if one.path.endswith(".py"):
            ast.parse(one.source)


def a_mutant(number: int, outcome: str, by: str = "") -> Mutant:
    lines = f"not {number}", str(number)
    return Mutant("access", "not", "a.py", number, *lines, number, "", 7, outcome, by)


def test_results_of_several_runs_add_up_and_the_last_of_a_mutant_counts(tmp_path: Path) -> None:
    outcomes = ("killed", "survived", "survived", "survived")
    for number, outcome in enumerate(outcomes):
        Results(tmp_path / "results").append(a_mutant(number, outcome=outcome))
    Results(tmp_path / "results").append(a_mutant(1, outcome="killed", by="a test"))
    results = Results(tmp_path / "results")
    assert [entry["line"] for entry in results.survivors()] == [2, 3]
    [equivalent] = [key for key, entry in results.last.items() if entry["line"] == 3]
    assert results.summary([equivalent]).splitlines()[-1] == (
        "all          killed at first 1 of 3 (33.3%), now 2 (66.7%); 1 equivalent"
    )


@pytest.mark.slow
def test_a_mutant_is_found_again_by_what_it_changes() -> None:
    drawn = draw(["access"], 3, seed=3)
    entries = [asdict(replace(one, source="", line=0)) for one in drawn]
    found = found_again([*entries, entries[0] | {"before": "gone"}])
    assert {one.source for one in found} == {one.source for one in drawn}
    assert {one.seed for one in found} == {3}


CODE = """
LARGEST = 2 + 1

def cut(value):
    if value > LARGEST:
        return LARGEST
    return value + 0

def unseen(value):
    return value * 2

class Shared:
    def __init__(self):
        self.value = 1 * 4
"""
TESTS = """
import pytest
from small.code import Shared, cut

@pytest.fixture(scope="module")
def shared():
    return Shared()

def test_that_fails_as_it_is():
    assert cut(1) == 2

def test_first(shared):
    assert cut(1) == 1  # not seen by it: LARGEST = 1; which test is quicker depends on the machine

def test_second(shared):
    assert shared.value == 4

def test_third():
    assert cut(5) == 3
"""


@pytest.mark.process
def test_a_fault_is_seen_in_a_function_a_fixture_and_at_import(tmp_path: Path) -> None:
    for path in [*files(ROOT, ["tests/__init__.py", "tests/mutants/*.py"]), "pyproject.toml"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "code.py").write_text(CODE, "utf-8")
    (tmp_path / "tests" / "test_small.py").write_text(TESTS, "utf-8")

    def changed(before: str, after: str) -> Mutant:
        line = CODE.splitlines().index(before) + 1
        source = CODE.replace(before, after)
        return Mutant("small", "", "small/code.py", line, before, after, line, source)

    mutants = [
        changed("    return value + 0", "    return value - 1"),
        changed("    if value > LARGEST:", "    if value >= LARGEST:"),
        changed("    return value * 2", "    return value / 2"),
        changed("        self.value = 1 * 4", "        self.value = 1 / 4"),
        changed("LARGEST = 2 + 1", "LARGEST = 2 - 1"),
        changed("    return value + 0", "    while True: pass"),
    ]
    room = Room(("small/*.py",), ("tests/test_small.py",))
    tried = {
        one.after.strip(): one.by
        for one in Tree(tmp_path, 4, tmp_path / "records").try_out(room, mutants)
    }
    assert tried == {
        "return value - 1": "tests/test_small.py::test_first",
        "if value >= LARGEST:": "",
        "return value / 2": "",
        "self.value = 1 / 4": "tests/test_small.py::test_second",
        "LARGEST = 2 - 1": "tests/test_small.py::test_third",
        "while True: pass": "more than 4 s",
    }


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_sources_and_tests(room: str) -> None:
    for pattern in ROOMS[room].sources + ROOMS[room].tests:
        assert files(ROOT, [pattern]), pattern


def test_what_is_equivalent_is_still_there_and_says_why() -> None:
    for (path, before, _), reason in equivalents().items():
        lines = map(str.strip, (ROOT / path).read_text("utf-8").splitlines())
        assert before in "\n".join(lines), f"{path} has no {before!r} any more"
        assert len(reason) > 20


def test_of_scripts_no_line_is_seen(tmp_path: Path) -> None:
    measured = coverage_of([tmp_path / "page.js"])
    measured.start()
    assert lines_of(measured) == {}
