"""Filters against an evaluator in Python that knows nothing of SQL."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.errors import InvalidFilter
from model_store.gallery import NewItem, Thumbnail, parse_filter, read_filter
from model_store.gallery.filters import MAX_BYTES, MAX_CONDITIONS, MAX_DEPTH
from model_store.gallery.items import Items, write_items

PICTURE = Thumbnail(b"", "image/png")
MISSING = object()
ORDERED = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}


def holds(asked: dict[str, Any], item: NewItem) -> bool:
    """What the grammar's description says, word by word, of the filter as it was written."""
    return all(_entry_holds(name, wanted, item) for name, wanted in asked.items())


def _entry_holds(name: str, wanted: Any, item: NewItem) -> bool:
    if name == "and":
        return all(holds(part, item) for part in wanted)
    if name == "or":
        return any(holds(part, item) for part in wanted)
    if name == "not":
        return not holds(wanted, item)
    value = _value(name, item)
    if not isinstance(wanted, dict):
        return _same(value, wanted)
    return all(_compares(how, value, than, name) for how, than in wanted.items())


def _value(name: str, item: NewItem) -> Any:
    if name in {"id", "label"}:
        return getattr(item, name)
    value: Any = item.metadata
    for key in name.removeprefix("metadata.").split("."):
        if not isinstance(value, dict) or key not in value:
            return MISSING
        value = value[key]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value)
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def _same(value: Any, wanted: Any) -> bool:
    return _kind(value) == _kind(wanted) and value == wanted


def _compares(how: str, value: Any, than: Any, name: str) -> bool:
    if how in ORDERED:
        return _kind(value) == _kind(than) and ORDERED[how](value, than)
    if how == "exists":
        there = value is not MISSING and not (name == "label" and value is None)
        return there is than
    if how == "in":
        return any(_same(value, one) for one in than)
    if how == "has":
        return isinstance(value, list) and any(_same(one, than) for one in value)
    return _same(value, than) is (how == "eq")


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "a", "b", "1", "true", "null", "é", "a'b", 'a"b', "%", "\\"]),
    TEXT,
)
KEYS = st.sampled_from(["a", "b", "größe", "label", "and", "a b", "x'y"])
METADATA = st.dictionaries(
    KEYS,
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(KEYS, SCALARS, max_size=2),
    max_size=3,
)
NAMES = st.one_of(
    st.sampled_from(["id", "label"]),
    st.builds("metadata.{}".format, KEYS),
    st.builds("metadata.{}.{}".format, KEYS, KEYS),
)
COMPARED = st.one_of(
    SCALARS,
    st.fixed_dictionaries({"ne": SCALARS}),
    st.fixed_dictionaries({"in": st.lists(SCALARS, max_size=3)}),
    st.fixed_dictionaries({"has": SCALARS}),
    st.fixed_dictionaries({"exists": st.booleans()}),
    st.dictionaries(
        st.sampled_from(sorted(ORDERED)), TEXT | st.integers(-3, 3) | st.just(0.5), min_size=1
    ),
)
FILTERS = st.recursive(
    st.dictionaries(NAMES, COMPARED, min_size=1, max_size=2),
    lambda parts: st.one_of(
        st.fixed_dictionaries({"not": parts}),
        st.fixed_dictionaries({"and": st.lists(parts, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"or": st.lists(parts, min_size=1, max_size=3)}),
    ),
    max_leaves=4,
)


def stored(path: Path, items: Sequence[NewItem]) -> Items:
    path.unlink(missing_ok=True)
    write_items(path, items, "the-encoder")
    return Items(path)


def found(path: Path, asked: dict[str, Any], items: Sequence[NewItem]) -> list[str]:
    matching = stored(path, items).matching(parse_filter(asked), len(items))
    return [item.id for item, matches in zip(items, matching, strict=True) if matches]


@settings(max_examples=60, deadline=None)
@given(asked=FILTERS, labels=st.lists(st.none() | TEXT, min_size=4, max_size=4), data=st.data())
def test_sql_finds_what_the_description_says(
    tmp_path_factory: pytest.TempPathFactory, asked: dict[str, Any], labels: list[Any], data: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "filtered.sqlite"
    asked = json.loads(json.dumps(asked))
    items = [
        NewItem(f"{row}'x", label, data.draw(METADATA), PICTURE) for row, label in enumerate(labels)
    ]
    assert found(path, asked, items) == [item.id for item in items if holds(asked, item)]


ITEMS = [
    NewItem("a", "shoe", {"year": 1999, "tags": ["red", 1], "brand": {"name": "Ono"}}, PICTURE),
    NewItem("b", "shoe", {"year": 2004.5, "sold": None, "label": "old"}, PICTURE),
    NewItem("c", None, {"year": "2004", "weight": math.nan, "half": "\ud800"}, PICTURE),
    NewItem("d", "hat", {"year": True, "tags": "red"}, PICTURE),
]


@pytest.mark.parametrize(
    ("asked", "ids"),
    [
        ({"label": "shoe"}, "ab"),
        ({"label": "shoe", "year": {"gte": 1999, "lt": 2000}}, "a"),
        ({"year": {"gte": "2"}}, "c"),
        ({"year": True}, "d"),
        ({"year": {"ne": 1999}}, "bcd"),
        ({"year": {"in": [1999.0, "2004"]}}, "ac"),
        ({"tags": {"has": "red"}}, "a"),
        ({"brand.name": "Ono"}, "a"),
        ({"sold": {"exists": True}}, "b"),
        ({"sold": None}, "b"),
        ({"weight": None}, "c"),
        ({"label": None}, "c"),
        ({"label": {"exists": False}}, "c"),
        ({"metadata.label": "old"}, "b"),
        ({"or": [{"label": "hat"}, {"not": {"year": {"lt": 3000}}}]}, "cd"),
        ({"id": {"in": ["b", "z"]}}, "b"),
        ({"id": {"gt": "b"}}, "cd"),
        ({"id": {"in": []}}, ""),
        ({"id": 1}, ""),
        ({"id": {"has": "a"}}, ""),
        ({"nothing.of.the.kind": {"lte": 0}}, ""),
    ],
)
def test_examples(tmp_path: Path, asked: dict[str, Any], ids: str) -> None:
    assert found(tmp_path / "items.sqlite", asked, ITEMS) == list(ids)


@pytest.mark.parametrize(
    "asked",
    [
        {"label": "x' OR 1 = 1 --"},
        {"id": {"in": ["'); DROP TABLE items; --"]}},
        {"a') IS NULL OR 1 = 1 OR json_type(metadata, '$.b": 1},
        {"metadata.x' OR '1'='1": {"exists": True}},
        {"$[0]": {"exists": True}},
        {"a[#-1]": {"exists": True}},
        {"tags": {"has": "') OR 1 --"}},
    ],
)
def test_text_that_looks_like_sql_is_text(tmp_path: Path, asked: dict[str, Any]) -> None:
    assert found(tmp_path / "items.sqlite", asked, ITEMS) == []


def deep(levels: int) -> dict[str, Any]:
    return {"not": deep(levels - 1)} if levels > 1 else {"label": "x"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], r"the filter is \[\]; wanted an object"),
        ({}, "wanted an object"),
        ("label", "wanted an object"),
        ({"year": {}}, r"the filter\.year asks nothing"),
        ({"year": {"near": 3}}, r"the filter\.year has the comparison 'near'; wanted eq \| ne"),
        ({"year": [1999]}, r"the filter\.year is \[1999\]; wanted text"),
        ({"year": {"in": 1999}}, r"year\.in is 1999; wanted a list"),
        ({"year": {"gt": None}}, "wanted a number or text"),
        ({"year": {"gt": True}}, "wanted a number or text"),
        ({"year": math.nan}, "a finite number"),
        ({"year": 2**63}, "64 bits"),
        ({"year": "\ud800"}, "surrogate"),
        ({"year": "a\0b"}, "NUL"),
        ({"a..b": 1}, "cannot be named"),
        ({"": 1}, "cannot be named"),
        ({'a"b': 1}, "cannot be named"),
        ({"\ud800": 1}, "surrogate"),
        ({"sold": {"exists": 1}}, "wanted true or false"),
        ({"or": []}, "wanted a list of filters"),
        ({"or": {"a": 1}}, "wanted a list of filters"),
        ({"and": [3]}, r"the filter\.and\[0\] is 3"),
        ({"not": []}, r"the filter\.not is \[\]"),
        (deep(MAX_DEPTH + 1), "nested deeper"),
        ({f"k{n}": n for n in range(MAX_CONDITIONS + 1)}, "33 conditions, at most 32"),
    ],
)
def test_nonsense_is_refused_in_words(asked: Any, says: str) -> None:
    with pytest.raises(InvalidFilter, match=says):
        parse_filter(asked)


def test_what_is_at_the_limits_is_taken(tmp_path: Path) -> None:
    asked = {f"k{n}": n for n in range(MAX_CONDITIONS)}
    assert found(tmp_path / "items.sqlite", asked, ITEMS) == []
    assert len(found(tmp_path / "items.sqlite", deep(MAX_DEPTH), ITEMS)) == 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("label = shoe", "not JSON"),
        ("[" * 1500, "not JSON"),
        (json.dumps({"label": "é" * MAX_BYTES}), f"at most {MAX_BYTES} bytes"),
    ],
)
def test_text_that_is_no_filter_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidFilter, match=says):
        read_filter(text)


def test_true_and_one_are_remembered_apart(tmp_path: Path) -> None:
    items = stored(tmp_path / "items.sqlite", ITEMS)
    ones = items.matching(parse_filter({"year": 1}), 4)
    trues = items.matching(parse_filter({"year": True}), 4)
    assert (ones.tolist(), trues.tolist()) == ([False] * 4, [False, False, False, True])


def test_rows_of_a_filter_are_looked_for_once_and_not_for_writing(tmp_path: Path) -> None:
    items = stored(tmp_path / "items.sqlite", ITEMS)
    first = items.matching(parse_filter({"label": "shoe"}), 4)
    assert items.matching(parse_filter({"label": "shoe"}), 4) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = False
