"""Counts how many items have each value of a field, in PostgreSQL."""

from __future__ import annotations

from model_store.gallery.filters.grammar import Field
from model_store.gallery.postgres.database import Connections
from model_store.gallery.postgres.filter import value_of
from model_store.records import Facet, FacetValue

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
  (SELECT min((value #>> '{{{{}}}}')::float8) FROM counted WHERE jsonb_typeof(value) = 'number'),
  (SELECT max((value #>> '{{{{}}}}')::float8) FROM counted WHERE jsonb_typeof(value) = 'number'),
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
        least=least,
        greatest=greatest,
        values=[FacetValue(value=value, n_items=n) for value, n in ranked]
        if ranked and ranked[0][1] > 1
        else [],
    )
