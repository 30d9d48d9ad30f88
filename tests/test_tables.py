"""The tables of settings say what the settings are."""

from __future__ import annotations

import pytest

from tests.readme.tables import PLACES, ROOT, TABLES, with_table


@pytest.mark.parametrize("name", list(TABLES))
def test_a_table_is_that_of_its_model(name: str) -> None:
    text = (ROOT / PLACES[name]).read_text("utf-8")
    assert with_table(text, name, TABLES[name]()) == text, "run `make tables`"
