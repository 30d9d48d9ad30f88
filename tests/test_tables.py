"""The tables of settings say what the settings are."""

from __future__ import annotations

import pytest

from index_builder.configuration.file import schema_file
from index_builder.configuration.schema import SCHEMA_FILE
from tests.readme.tables import PLACES, ROOT, TABLES, with_table


@pytest.mark.parametrize("name", list(TABLES))
def test_a_table_is_that_of_its_model(name: str) -> None:
    text = (ROOT / PLACES[name]).read_text("utf-8")
    assert with_table(text, name, TABLES[name]()) == text, "run `make tables`"


def test_the_shipped_schema_is_that_of_the_models() -> None:
    assert SCHEMA_FILE.read_text("utf-8") == schema_file(), "run `make tables`"
