"""Cells of CSV files that spreadsheets take for text, whatever it begins with."""

from __future__ import annotations

import re

FORMULA = re.compile(r"^'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""A beginning that makes a cell a formula in some spreadsheet, perhaps after apostrophes."""


def to_cell(text: str) -> str:
    """Return ``text`` for a cell: an apostrophe stands before what would be a formula."""
    return f"'{text}" if FORMULA.match(text) else text


def from_cell(cell: str) -> str:
    """Return the text that `to_cell` made ``cell`` of."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell
