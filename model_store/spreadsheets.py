"""CSV cells that spreadsheets never read as formulas."""

from __future__ import annotations

import re

FORMULA = re.compile(r"^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""Pattern of the beginning of a cell that some spreadsheets read as a formula. Apostrophes may
precede it."""


def to_cell(text: str) -> str:
    """Return ``text`` as the content of a cell; a possible formula gets an apostrophe in front."""
    return f"'{text}" if FORMULA.match(text) else text


def from_cell(cell: str) -> str:
    """Return the original text of a ``cell`` from `to_cell`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell
