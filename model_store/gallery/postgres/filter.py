"""Converts filters to conditions of PostgreSQL, and counts the values of a field.

A condition uses the columns ``id``, ``label`` (null without a label) and ``metadata`` (jsonb). It
contains no text of the filter, only ``%s`` for each value. For every item it is true or false,
never null. Values of different kinds are never equal. jsonb compares numbers by their decimal
digits; only an integer above 2⁵³ and the nearest float can differ there. An equality also tests
containment (``@>``), because PostgreSQL has an index for this test.
"""

from __future__ import annotations

import json
from typing import Any

from model_store.gallery.filters.grammar import Condition, Field, Filter, Scalar
from model_store.gallery.filters.sql import OPERATORS, compiled, joined
from model_store.records import Facet, FacetValue

from .database import Connections

Values = list[Any]

_NOTHING: tuple[str, Values] = ("FALSE", [])


def to_condition(part: Filter) -> tuple[str, Values]:
    """Return the condition that an item passes the filter, and its values."""
    return compiled(part, _condition, "TRUE", "FALSE")


def value_of(field: Field) -> tuple[str, Values]:
    """Return the expression for a field's value as jsonb; null if the item has no such value.

    ``->`` with text finds keys of objects only, never elements of lists.
    """
    if field.column != "metadata":
        return f"to_jsonb({field.column})", []
    return "(metadata" + " -> %s::text" * len(field.path) + ")", list(field.path)


def _condition(condition: Condition) -> tuple[str, Values]:
    field, comparison = condition.field, condition.comparison
    wanted = condition.values[0] if condition.values else None
    match comparison:
        case "eq" | "ne":
            text, values = _equal(field, wanted)
            return (text if comparison == "eq" else f"(NOT {text})"), values
        case "in":
            return joined(" OR ", "FALSE", [_equal(field, one) for one in condition.values])
        case "has":
            return _has(field, wanted)
        case "exists":
            return _exists(field, wanted=bool(wanted))
        case _:
            return _compared(field, OPERATORS[comparison], wanted)


def _equal(field: Field, wanted: Scalar) -> tuple[str, Values]:
    if field.column != "metadata":
        if wanted is None:
            return ("(label IS NULL)", []) if field.column == "label" else _NOTHING
        return _compared(field, "=", wanted) if isinstance(wanted, str) else _NOTHING
    value, path = value_of(field)
    known = json.dumps(wanted)
    contained = json.dumps(_nested(field.path, wanted))
    text = f"(metadata @> %s::jsonb AND {value} IS NOT DISTINCT FROM %s::jsonb)"
    return text, [contained, *path, known]


def _has(field: Field, wanted: Scalar) -> tuple[str, Values]:
    if field.column != "metadata":
        return _NOTHING
    # A list contains [wanted] if one of its elements equals it.
    return "(metadata @> %s::jsonb)", [json.dumps(_nested(field.path, [wanted]))]


def _exists(field: Field, *, wanted: bool) -> tuple[str, Values]:
    match field.column:
        case "id":
            return ("TRUE" if wanted else "FALSE"), []
        case "label":
            return ("(label IS NOT NULL)" if wanted else "(label IS NULL)"), []
        case _:
            value, path = value_of(field)
            return f"({value} IS {'NOT ' if wanted else ''}NULL)", path


def _compared(field: Field, operator: str, wanted: Scalar) -> tuple[str, Values]:
    """Return a comparison, false for a value of another kind; texts are ordered by code point."""
    kind = "string" if isinstance(wanted, str) else "number"
    if field.column != "metadata":
        if kind == "number":
            return _NOTHING
        column = field.column
        return f"({column} IS NOT NULL AND {column} {operator} %s)", [wanted]
    value, path = value_of(field)
    of_kind = f"COALESCE(jsonb_typeof({value}) = '{kind}', FALSE)"
    if kind == "string":
        text = f"({value} #>> '{{}}') COLLATE \"C\" {operator} %s"
        return f"({of_kind} AND {text})", [*path, *path, wanted]
    return f"({of_kind} AND {value} {operator} %s::jsonb)", [*path, *path, json.dumps(wanted)]


def _nested(path: tuple[str, ...], value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    for key in reversed(path):
        value = {key: value}
    return value


_SCALAR = "jsonb_typeof(value) IN ('string', 'number', 'boolean')"

_COUNTED = f"""
WITH found AS MATERIALIZED (SELECT row, {{value}} AS value FROM items WHERE {{visible}}),
lists AS (
  SELECT count(*) AS n FROM found WHERE jsonb_typeof(value) = 'array'
), single AS (
  SELECT count(*) AS n FROM found WHERE {_SCALAR}
), held AS (
  SELECT DISTINCT row, element AS value FROM found, jsonb_array_elements(
    CASE WHEN jsonb_typeof(value) = 'array' THEN value ELSE '[]' END) AS element
), chosen AS (
  SELECT row, value FROM found WHERE (SELECT n FROM lists) <= (SELECT n FROM single)
  UNION ALL SELECT row, value FROM held WHERE (SELECT n FROM lists) > (SELECT n FROM single)
), counted AS (
  SELECT value, count(*) AS n FROM chosen WHERE {_SCALAR} GROUP BY value
)
SELECT (SELECT n FROM lists), (SELECT n FROM single), (SELECT count(*) FROM counted),
  (SELECT min(value::numeric) FROM counted WHERE jsonb_typeof(value) = 'number'),
  (SELECT max(value::numeric) FROM counted WHERE jsonb_typeof(value) = 'number'),
  (SELECT json_agg(json_build_array(value, n) ORDER BY n DESC, kind, value) FROM (
    SELECT value, n, jsonb_typeof(value) AS kind FROM counted
    ORDER BY n DESC, jsonb_typeof(value), value LIMIT %s) AS most)
"""  # noqa: S608 - no text of a client


def facet_of(database: Connections, field: Field, version: int, visible: str, most: int) -> Facet:
    """Describe a field of the items in the state ``version``; see `Gallery.facets`.

    The comparison is ``has`` if more items have a list in the field than a single value.

    Parameters
    ----------
    visible : condition that a row is in the state; it takes the version twice.
    """
    value, path = value_of(field)
    statement = _COUNTED.format(value=value, visible=visible)
    [(n_lists, n_single, n_values, least, greatest, ranked)] = database.rows(
        statement, [*path, version, version, most]
    )
    ranked = ranked or []
    return Facet(
        field=field.name,
        comparison="has" if n_lists > n_single else "eq",
        n_items=max(n_lists, n_single),
        n_values=n_values,
        # An integer beyond the range of floats becomes infinity.
        least=None if least is None else float(least),
        greatest=None if greatest is None else float(greatest),
        values=[FacetValue(value=value, n_items=n) for value, n in ranked]
        if ranked and ranked[0][1] > 1
        else [],
    )
