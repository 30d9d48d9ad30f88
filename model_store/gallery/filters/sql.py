"""Converts filters to SQL, and reads the values of a field by SQL."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.gallery.filters.columns import (
    FALSE,
    LIST,
    MISSING,
    NULL,
    NUMBER_KIND,
    OBJECT,
    TEXT_KIND,
    TRUE,
    Column,
    Entry,
    make_column,
)
from model_store.gallery.filters.grammar import And, Condition, Field, Filter, Not, Or, Scalar

_readers = threading.local()

OPERATORS: Mapping[str, str] = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
"""The operators of comparisons that need an order; databases with other filters use them, too."""

Sql = tuple[str, list[Any]]
"""A condition, and the values of its parameters."""


def to_sql(part: Filter) -> tuple[str, list[Scalar]]:
    """Return an SQL expression that is 1 or 0 for every row (never null), and its parameters.

    The expression uses the columns ``id``, ``label`` (null without a label) and ``metadata`` (a
    JSON object written by `metadata_json`). It contains no text of the filter, only ``?`` for each
    parameter.
    """
    return compiled(part, _condition_sql, "1", "0")


def compiled(part: Filter, of_condition: Callable[[Condition], Sql], true: str, false: str) -> Sql:
    """Convert a filter to SQL with the parameters of its values.

    Parameters
    ----------
    of_condition : converts one condition; its SQL is in parentheses, or a constant.
    true, false : constants of the SQL dialect.
    """
    match part:
        case Condition():
            return of_condition(part)
        case Not(inner):
            text, values = compiled(inner, of_condition, true, false)
            return f"(NOT {text})", values
        case And(parts) | Or(parts):
            operator, of_none = (" AND ", true) if isinstance(part, And) else (" OR ", false)
            within = [compiled(one, of_condition, true, false) for one in parts]
            return joined(operator, of_none, within)


def joined(operator: str, of_none: str, parts: Sequence[Sql]) -> Sql:
    """Join conditions; the result of no conditions is ``of_none``."""
    texts = [of_none, *(text for text, _ in parts)]
    return f"({operator.join(texts)})", [value for _, values in parts for value in values]


@dataclass(frozen=True, slots=True)
class _Source:
    """SQL expressions for a value and for its kind; both take the parameters ``marks``."""

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
            return _compare(source, OPERATORS[condition.comparison], wanted)


def _exists(field: Field, source: _Source, *, wanted: bool) -> tuple[str, list[Scalar]]:
    """Return the condition that an item has the field, or (if not ``wanted``) lacks the field."""
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
    """Return the condition that a value equals one of several values."""
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
"""SQL that reads a number from JSON. So the number is rounded in the same way as in the metadata,
which SQLite also reads from JSON."""


def _is_number(source: _Source) -> str:
    return f"({source.kind} IS 'integer' OR {source.kind} IS 'real')"


def _equal(source: _Source, wanted: Scalar) -> tuple[str, list[Scalar]]:
    if wanted is None or isinstance(wanted, bool):
        kind = {None: "null", True: "true", False: "false"}[wanted]
        return f"({source.kind} IS '{kind}')", [*source.marks]
    return _compare(source, "=", wanted)


def _compare(source: _Source, operator: str, wanted: Scalar) -> tuple[str, list[Scalar]]:
    """Return a comparison with a value; the comparison is false for a value of another kind."""
    if isinstance(wanted, str):
        of_kind, mark, value = f"{source.kind} IS 'text'", "?", wanted
        marks = source.marks
    else:
        of_kind = _is_number(source)
        mark, value = _NUMBER, json.dumps(wanted)
        marks = source.marks * 2
    text = f"({of_kind} AND {source.value} {operator} {mark})"
    return text, [*marks, *source.marks, value]


@dataclass(frozen=True, slots=True)
class ItemTable:
    """A table with the columns ``id``, ``label`` and ``metadata``.

    Attributes
    ----------
    table : name of the table.
    row : name of the column with the row number.
    condition : SQL that selects the rows to read.
    marks : parameters of ``condition``.
    numbers : (n,) ascending row numbers; None for 0 to n − 1.
    """

    table: str
    row: str
    condition: str = "1"
    marks: tuple[int, ...] = ()
    numbers: NDArray[np.int64] | None = None


_KINDS = {
    "null": NULL,
    "false": FALSE,
    "true": TRUE,
    "array": LIST,
    "object": OBJECT,
    "integer": NUMBER_KIND,
    "real": NUMBER_KIND,
    "text": TEXT_KIND,
}
_KIND = " ".join(f"WHEN '{kind}' THEN {code}" for kind, code in _KINDS.items())
_ENTRIES = f"""
SELECT CASE kind {_KIND} ELSE {MISSING} END,
  CASE kind WHEN 'text' THEN CAST(value AS BLOB)
    WHEN 'integer' THEN value WHEN 'real' THEN value END,
  row
FROM (SELECT {{kind}} AS kind, {{value}} AS value, {{row}} AS row FROM {{rows}}) ORDER BY 1, 2, 3
"""  # noqa: S608
"""Text is read as bytes, because Python cannot decode an unpaired surrogate."""


def column_of(
    connection: sqlite3.Connection,
    field: Field,
    source: ItemTable,
    n_rows: int,
    most_bytes: float = math.inf,
) -> Column | None:
    """Return a field's index for ``n_rows`` rows; None if the index exceeds ``most_bytes``."""
    of_field = _source(field)
    rows = f"{source.table} WHERE {source.condition}"
    values = _entries(connection, of_field, (), rows, source)
    held: Iterator[Entry] = iter(())
    if of_field.marks:
        rows = (
            f"{source.table}, json_each(metadata, ?) AS e WHERE json_type(metadata, ?) IS 'array' "
            f"AND e.type NOT IN ('array', 'object') AND {source.condition}"
        )
        found = _entries(connection, _IN_LIST, of_field.marks * 2, rows, source)
        held = (entry for entry, _ in groupby(found))  # a list may contain a value twice
    return make_column(values, held, n_rows, most_bytes)


def _entries(
    connection: sqlite3.Connection,
    of_field: _Source,
    marks: tuple[str, ...],
    rows: str,
    source: ItemTable,
) -> Iterator[Entry]:
    """Yield kind, value and row in order; the query runs when the first entry is read."""
    query = _ENTRIES.format(kind=of_field.kind, value=of_field.value, row=source.row, rows=rows)
    found = connection.execute(query, [*of_field.marks * 2, *marks, *source.marks])
    if source.numbers is None:
        yield from found
        return
    place_of = {number: place for place, number in enumerate(source.numbers.tolist())}
    for kind, value, number in found:
        yield kind, value, place_of[number]


def as_stored(part: Filter) -> Filter:
    """Return a filter whose floats are rounded in the same way as floats in SQLite.

    When SQLite reads a float from JSON, the last bit of the float may change.
    """
    match part:
        case Not(inner):
            return Not(as_stored(inner))
        case And(parts) | Or(parts):
            return type(part)(tuple(as_stored(one) for one in parts))
        case Condition(values=values):
            if not any(isinstance(value, float) for value in values):
                return part
            return replace(part, values=tuple(map(_as_read, values)))


def _as_read(value: Scalar) -> Scalar:
    """Return the value as SQLite reads it from JSON.

    The thread reuses one connection, because opening a connection takes longer than a small search
    with a filter.
    """
    if not isinstance(value, float):
        return value
    if not hasattr(_readers, "connection"):
        _readers.connection = sqlite3.connect(":memory:")
    found = _readers.connection.execute(f"SELECT {_NUMBER}", [json.dumps(value)])
    [read] = found.fetchone()
    return float(read)


def metadata_json(metadata: Mapping[str, Any]) -> str:
    """Return the metadata as JSON for filters; NaN and infinities become null."""
    text = json.dumps(_finite(dict(metadata)), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode()  # an unpaired surrogate becomes \udXXX


def _finite(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
