"""The deny list of `[tool.vouch.words]` in pyproject.toml, over all that people read.

Strings, docstrings and comments of the code, the page, and documentation.
"""

from __future__ import annotations

import io
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["vouch"]["words"]
PLACES = (
    *("service", "model_store", "index_builder", "vouch_search", "docs", "docker"),
    *(".github/**/*.md", "README.md", "CHANGELOG.md", "tests/**/*.md"),
)
SUFFIXES = {".py", ".md", ".js", ".html"}
TOKENS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}

RULES = [(re.compile(rule, re.IGNORECASE), advice) for rule, advice in WORDS["deny"]]


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the text of each string and comment; of other files, each line."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in TOKENS:
            yield token.start[0], re.sub(r"\s+", " ", token.string)


def hits(path: Path) -> Iterator[str]:
    """Each hit with its place and what to write instead."""
    for line, text in texts(path):
        for rule, advice in RULES:
            for found in rule.finditer(text):
                shown = text[max(0, found.start() - 30) : found.end() + 30]
                yield f"{path.name}:{line}: …{shown}… write: {advice}"


def files() -> Iterator[Path]:
    for place in PLACES:
        for path in sorted(ROOT.glob(place if "." in place else f"{place}/**/*")):
            # Translations repeat the English texts of the page.
            if path.suffix in SUFFIXES and not {"node_modules", "languages"} & set(path.parts):
                yield path


def package_of(path: Path) -> str:
    return "/".join(path.relative_to(ROOT).parts[:2])


def test_no_package_has_more_denied_words_than_before() -> None:
    found: dict[str, list[str]] = {}
    for path in files():
        found.setdefault(package_of(path), []).extend(hits(path))
    allowed = Counter(WORDS["remaining"])
    more = {name: one for name, one in found.items() if len(one) > allowed[name]}
    assert not more, "\n".join(line for one in more.values() for line in one)


@pytest.mark.parametrize("text", ["# whoever asks", 'x = "spoilt images"', '"""Let go of it."""'])
def test_denied_words_are_found_in_comments_strings_and_docstrings(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "code.py").write_text(f"{text}\n", "utf-8")
    assert len(list(hits(tmp_path / "code.py"))) == 1


def test_names_of_the_code_are_not_prose(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("alien = whoever = 1\n", "utf-8")
    assert list(hits(tmp_path / "code.py")) == []
