"""Schemas of filters, and of the method by which the items that pass a filter were found."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BeforeValidator, Field


def _as_text(value: object) -> object:
    """Return the JSON text of a filter that is an object; return any other value unchanged."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


FilterText = Annotated[str | None, BeforeValidator(_as_text)]

FILTER_DESCRIPTION = (
    'Condition on the items to list, as JSON: `{"label": "shoe", "year": {"gte": 2000}}`. Fields '
    "are `id`, `label` and keys of the metadata; dots separate the keys of nested objects. A bare "
    "value means `eq`. The other comparisons are `ne`, `in`, `gt`, `gte`, `lt`, `lte`, `has` (a "
    "list holds the value) and `exists`. `and`, `or` and `not` join filters. A filter restricts "
    "the listed items; match probabilities are for the whole gallery, see `filter_means`."
)


EXPLAIN = Field(description="How the items under the filter were found; null without a filter.")
