"""Lists in options and environment variables."""

from __future__ import annotations

from typing import Any

import pytest

from model_store.text_values import as_list, as_mapping, split_list


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", []),
        ("a", ["a"]),
        ("a,b", ["a", "b"]),
        (" a , b,, ", ["a", "b"]),
        ("https://a.example:8080,*.b", ["https://a.example:8080", "*.b"]),
        ("[]", []),
        (' ["a", "b,c"]', ["a", "b,c"]),
    ],
)
def test_a_text_is_split_at_commas_or_read_as_json(text: str, values: list[str]) -> None:
    assert split_list(text) == values


@pytest.mark.parametrize("text", ['["a"', "[1]", '[["a"]]'])
def test_a_broken_json_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        split_list(text)


@pytest.mark.parametrize(
    ("value", "values"),
    [("a,b", ["a", "b"]), (["a,b", "c"], ["a", "b", "c"]), ((1, "a"), [1, "a"]), (None, None)],
)
def test_values_of_an_option_that_is_repeated_are_joined(value: Any, values: Any) -> None:
    assert as_list(value) == values


@pytest.mark.parametrize(
    ("value", "pairs"),
    [
        ("a=1", {"a": "1"}),
        (["a=x?y=1, b=2", "c=3"], {"a": "x?y=1", "b": "2", "c": "3"}),
        ('{"a": "1,2"}', {"a": "1,2"}),
        ({"a": "1"}, {"a": "1"}),
    ],
)
def test_pairs_are_split_at_the_first_equals_sign(value: Any, pairs: dict[str, str]) -> None:
    assert as_mapping(value) == pairs


@pytest.mark.parametrize("value", ["a", "a=1,b", '{"a"'])
def test_a_part_without_a_value_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        as_mapping(value)
