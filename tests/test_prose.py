"""The prose rule of CONTRIBUTING.md, and what that file and SECURITY.md say of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings

ROOT = Path(__file__).parents[1]
PACKAGES = ("service", "model_store", "index_builder", "vouch_search")
CONTRIBUTING = ROOT / ".github" / "CONTRIBUTING.md"
SECURITY = ROOT / ".github" / "SECURITY.md"

RELATIVE_WORDS = frozenset(
    "What Of Who Whom Whose Where How Whether Which When".split()  # noqa: SIM905
)
RULE = (
    'A docstring begins with a verb ("Return …") if it is a function\'s, else with a noun phrase '
    '("The …"), and with none of ' + ", ".join(sorted(RELATIVE_WORDS)) + "."
)

Docstring = tuple[int, str]
"""The line where it begins, and its text."""


def text_of(statement: ast.stmt) -> Docstring | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        text = statement.value.value
        return (statement.lineno, text) if isinstance(text, str) else None
    return None


def docstrings(tree: ast.Module) -> Iterator[Docstring]:
    """Of modules, classes, functions, and of what is assigned in a module or class."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        documented = node.body[:1]
        if isinstance(node, ast.Module | ast.ClassDef):
            documented = documented + [
                after
                for before, after in zip(node.body, node.body[1:], strict=False)
                if isinstance(before, ast.Assign | ast.AnnAssign)
            ]
        yield from filter(None, map(text_of, documented))


def riddles(source: str) -> list[Docstring]:
    """The docstrings that break the rule."""
    found = [
        (line, text)
        for line, text in docstrings(ast.parse(source))
        if (word := re.search(r"\w+", text)) and word[0] in RELATIVE_WORDS
    ]
    return sorted(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_docstring_begins_with_a_relative_word(package: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in riddles(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join([RULE, *found])


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""What it is."""', 1),
        ('"""\nWhat it is."""', 1),
        ('class A:\n    """Who asks."""', 2),
        ('class A:\n    def f(self):\n        """How many."""', 3),
        ('async def f():\n    """`Whether` it runs."""', 2),
        ('def f():\n    def g():\n        """Where it lies."""', 3),
        ('if True:\n    def f():\n        r"""Of \\d."""', 3),
        ('N = 1\n"""Of items."""', 2),
        ('class A:\n    n: int = 1\n    """Which."""', 3),
    ],
)
def test_the_rule_looks_at_every_docstring(source: str, line: int) -> None:
    assert [found for found, _ in riddles(source)] == [line]


@pytest.mark.parametrize(
    "source",
    [
        '"""Whatever it is."""',
        '"""The place where."""',
        'print("What")',
        'def f():\n    "x"\n    "Of"',
    ],
)
def test_the_rule_leaves_the_rest_alone(source: str) -> None:
    assert riddles(source) == []


@pytest.fixture(params=[CONTRIBUTING, SECURITY], ids=lambda path: path.name)
def page(request: pytest.FixtureRequest) -> str:
    text: str = request.param.read_text(encoding="utf-8")
    return text


def places(text: str) -> set[str]:
    """Files and folders that are named in backquotes."""
    named = set(re.findall(r"`([\w.-]+(?:/[\w.-]*)+|[\w-]+\.(?:md|yml|toml|py))`", text))
    return named - {"build/bench.json"}  # which `make bench` writes


def test_every_place_that_is_named_exists(page: str) -> None:
    named = places(page)
    assert named
    assert [place for place in sorted(named) if not (ROOT / place).exists()] == []


def test_every_name_that_is_said_to_be_in_a_file_is_there(page: str) -> None:
    for first, second, place in re.findall(
        r"`(\w+)`(?: or `(\w+)`)? (?:in|of)\s+`([\w./-]+\.py)`", page
    ):
        words = set(re.findall(r"\w+", (ROOT / place).read_text(encoding="utf-8")))
        assert {first, second} - {""} <= words, (first, second, place)


def test_every_variable_that_is_named_is_read(page: str) -> None:
    readers = ("docker-compose.yml", "tests/conftest.py", "tests/service/test_openapi.py")
    known = {f"VOUCH_{name.upper()}" for name in Settings.model_fields}
    for reader in readers:
        known |= set(re.findall(r"VOUCH_[A-Z_]+", (ROOT / reader).read_text(encoding="utf-8")))
    assert set(re.findall(r"VOUCH_[A-Z_]+", page)) - known == set()


def glossary() -> list[list[str]]:
    """Term, sentence and place of each row."""
    section = CONTRIBUTING.read_text(encoding="utf-8").split("## Glossary")[1].split("\n## ")[0]
    table = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_glossary_explains_each_term_once_and_in_one_sentence() -> None:
    terms = [term for term, _, _ in glossary()]
    assert len(terms) == len(set(terms))
    assert len(terms) > 20
    for term, sentence, _ in glossary():
        assert sentence.endswith("."), term
        assert ". " not in sentence, term


@pytest.mark.parametrize(("term", "place"), [(term, place) for term, _, place in glossary()])
def test_the_glossary_names_a_module_that_knows_the_term(term: str, place: str) -> None:
    [path] = places(place)
    text = (ROOT / path).read_text(encoding="utf-8").lower()
    last_word = re.split(r"[\s-]", term.lower())[-1].rstrip("s")
    assert last_word in text
