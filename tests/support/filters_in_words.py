"""What filters mean, told by an evaluator in Python that knows no engine, and filters to try."""

from __future__ import annotations

import math
import operator
from typing import Any

from hypothesis import strategies as st

from model_store.gallery import NewItem, Thumbnail

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


ITEMS = [
    NewItem("a", "shoe", {"year": 1999, "tags": ["red", 1], "brand": {"name": "Ono"}}, PICTURE),
    NewItem("b", "shoe", {"year": 2004.5, "sold": None, "label": "old"}, PICTURE),
    NewItem("c", None, {"year": "2004", "weight": math.nan, "half": "\ud800"}, PICTURE),
    NewItem("d", "hat", {"year": True, "tags": "red"}, PICTURE),
]

EXAMPLES: list[tuple[dict[str, Any], str]] = [
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
]
"""Filters, and the ids of those of `ITEMS` that they let through."""
