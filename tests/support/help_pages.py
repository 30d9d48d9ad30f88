"""What makes the help of a command readable at 80 columns."""

from __future__ import annotations

import re

WIDTH, NARROWEST = 80, 40

_PYTHON_TYPES = re.compile(
    r"\b(?:tuple|dict|list|set|Optional|Union|Literal)\[|SecretStr|PosixPath|<class"
    r"|\{int,|--[\w-]+ (?:str|int|float|bool|Path|INTEGER|FLOAT)\b|(?:None|null)\b.*\)"
)


def readable(page: str) -> None:
    """Check a page of help.

    Descriptions have at least 40 columns, no line is too long, no name is cut off, and no type of
    Python is named.
    """
    lines = page.splitlines()
    assert max(map(len, lines)) <= WIDTH
    for line in lines:
        assert not re.search(r"[\w.-]…|[│┃]", line), line
        assert not _PYTHON_TYPES.search(line), line
        assert len(line) - len(line.lstrip()) <= WIDTH - NARROWEST, line
