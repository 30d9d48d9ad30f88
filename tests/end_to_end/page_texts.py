"""The texts of the page, read out of its modules: what a translation has to have."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from tests.end_to_end.shown_page import FILES


def _templates(script: str) -> Iterator[str]:
    """The names of all templates t`…` in a script, those within others too."""
    for begin in re.finditer(r"(?<![\w$])t`", script):
        yield _name(script, begin.end())


def _name(script: str, at: int) -> str:
    """The name of the template whose text begins there: values are numbered, from 0."""
    name, n_values = "", 0
    while script[at] != "`":
        if script.startswith("${", at):
            name += f"{{{n_values}}}"
            n_values += 1
            at = _end_of_value(script, at + 2)
        else:
            at += script[at] == "\\"
            name += script[at]
            at += 1
    return name


def _end_of_value(script: str, at: int) -> int:
    """The place after a value's closing brace; templates within it are skipped."""
    depth = 1
    while depth:
        if script[at] == "`":
            at += 1
            while script[at] != "`":
                at = _end_of_value(script, at + 2) if script.startswith("${", at) else at + 1
        depth += {"{": 1, "}": -1}.get(script[at], 0)
        at += 1
    return at


def texts() -> set[str]:
    """All texts of the page, in English."""
    found = {
        name
        for path in FILES.rglob("*.js")
        for name in _templates(path.read_text(encoding="utf-8"))
    }
    document = (FILES / "index.html").read_text(encoding="utf-8")
    marked = re.findall(r"<[^>]*\sdata-t(?:\s[^>]*)?>([^<]+)<", document)
    labels = re.findall(r'aria-label="([^"]+)"', document)
    return found | {html.unescape(text) for text in [*marked, *labels]}
