"""CONTRIBUTING.md, VERSIONING.md and SECURITY.md name what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.settings import Settings

ROOT = Path(__file__).parents[1]
CONTRIBUTING = ROOT / ".github" / "CONTRIBUTING.md"
SECURITY = ROOT / ".github" / "SECURITY.md"


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
