"""Filters as SQL on the columns ``id``, ``label`` and ``metadata``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_store.gallery.filters.grammar import And, Condition, Field, Filter, Not, Or, Scalar

_ORDERED: Mapping[str, str] = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def to_sql(part: Filter) -> tuple[str, list[Scalar]]:
    """An expression that is 1 or 0 on every row, never null, and the values of its marks.

    On columns ``id``, ``label`` (null without) and ``metadata`` (valid JSON, an object, its text
    not escaped beyond need: `metadata_json`). No part of a filter's own text is in the expression.
    """
    match part:
        case Condition():
            return _condition_sql(part)
        case Not(inner):
            text, values = to_sql(inner)
            return f"NOT {text}", values
        case And(parts):
            return _join(" AND ", parts, "1")
        case Or(parts):
            return _join(" OR ", parts, "0")


def _join(operator: str, parts: tuple[Filter, ...], of_none: str) -> tuple[str, list[Scalar]]:
    texts, values = [of_none], []
    for part in parts:
        text, of_part = to_sql(part)
        texts.append(text)
        values += of_part
    return f"({operator.join(texts)})", values


@dataclass(frozen=True, slots=True)
class _Source:
    """SQL for the kind of a value and the value, and the marks that each of the two has."""

    kind: str
    value: str
    marks: tuple[str, ...] = ()


def _source(field: Field) -> _Source:
    match field.column:
        case "id":
            return _Source("'text'", "id")
        case "label":
            return _Source("CASE WHEN label IS NULL THEN 'null' ELSE 'text' END", "label")
        case "metadata":
            path = "$" + "".join(f'."{key}"' for key in field.path)
            return _Source("json_type(metadata, ?)", "json_extract(metadata, ?)", (path,))


_IN_LIST = _Source("e.type", "e.value")


def _condition_sql(condition: Condition) -> tuple[str, list[Scalar]]:
    source = _source(condition.field)
    wanted = condition.values[0] if condition.values else None
    match condition.comparison:
        case "eq":
            return _equal(source, wanted)
        case "ne":
            text, values = _equal(source, wanted)
            return f"NOT {text}", values
        case "in":
            return _any_equal(source, condition.values)
        case "has":
            return _has(source, wanted)
        case "exists":
            return _exists(condition.field, source, wanted=bool(wanted))
        case _:
            return _compare(source, _ORDERED[condition.comparison], wanted)


def _exists(field: Field, source: _Source, *, wanted: bool) -> tuple[str, list[Scalar]]:
    """Return the condition that an item has the field, or with ``wanted`` false lacks it."""
    text = "label IS NULL" if field.column == "label" else f"{source.kind} IS NULL"
    values = [] if field.column == "label" else list[Scalar](source.marks)
    return (f"NOT ({text})" if wanted else f"({text})"), values


def _has(source: _Source, wanted: Scalar) -> tuple[str, list[Scalar]]:
    if not source.marks:
        return "0", []
    text, values = _equal(_IN_LIST, wanted)
    held = f"EXISTS (SELECT 1 FROM json_each(metadata, ?) AS e WHERE {text})"  # noqa: S608
    return f"({source.kind} IS 'array' AND {held})", [*source.marks, *source.marks, *values]


def _any_equal(source: _Source, wanted: tuple[Scalar, ...]) -> tuple[str, list[Scalar]]:
    """One of several: the metadata is looked into once for all texts, and once for all numbers."""
    texts: list[str] = ["0"]
    values: list[Scalar] = []
    words = [word for word in (None, True, False) if any(one is word for one in wanted)]
    for text, of_word in (_equal(source, word) for word in words):
        texts.append(text)
        values += of_word
    strings = [one for one in wanted if isinstance(one, str)]
    if strings:
        marks = ", ".join("?" * len(strings))
        texts.append(f"({source.kind} IS 'text' AND {source.value} IN ({marks}))")
        values += [*source.marks, *source.marks, *strings]
    numbers = [one for one in wanted if not isinstance(one, str | bool | None)]
    if numbers:
        marks = ", ".join([_NUMBER] * len(numbers))
        texts.append(f"({_is_number(source)} AND {source.value} IN ({marks}))")
        values += [*source.marks * 2, *source.marks, *map(json.dumps, numbers)]
    return f"({' OR '.join(texts)})", values


_NUMBER = "json_extract(?, '$')"
"""A number as those of the metadata are read, to the last bit."""


def _is_number(source: _Source) -> str:
    return f"({source.kind} IS 'integer' OR {source.kind} IS 'real')"


def _equal(source: _Source, wanted: Scalar) -> tuple[str, list[Scalar]]:
    if wanted is None or isinstance(wanted, bool):
        kind = {None: "null", True: "true", False: "false"}[wanted]
        return f"({source.kind} IS '{kind}')", [*source.marks]
    return _compare(source, "=", wanted)


def _compare(source: _Source, operator: str, wanted: Scalar) -> tuple[str, list[Scalar]]:
    """Return a comparison within one kind; numbers are read as the metadata's are."""
    if isinstance(wanted, str):
        of_kind, mark, value = f"{source.kind} IS 'text'", "?", wanted
        marks = source.marks
    else:
        of_kind = _is_number(source)
        mark, value = _NUMBER, json.dumps(wanted)
        marks = source.marks * 2
    text = f"({of_kind} AND {source.value} {operator} {mark})"
    return text, [*marks, *source.marks, value]


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Metadata as the column that filters look into: JSON, in which NaN and infinities are null."""
    text = json.dumps(_finite(dict(metadata)), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair: \udXXX again


def _finite(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
