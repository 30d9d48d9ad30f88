"""Schemas of filters, and of the method by which the items that pass a filter were found."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from model_store.verdicts import IndexedBy, Plan


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


class Explanation(BaseModel):
    """How the items that pass a filter were found."""

    plan: Plan = Field(
        description="`exact`: every item that passes was compared with the query. `filter_first`: "
        "the index searched only the items that pass. `search_first`: the index was searched "
        "for more items than requested, and items that do not pass were removed."
    )
    estimated_share: float = Field(description="Estimated share of the gallery's items that pass.")
    indexes: dict[str, IndexedBy] = Field(
        description="Index that was used for each field of the filter. `bundle`: an index stored "
        "in the bundle. `memory`: an index built in memory at the first filter with this field. "
        "`none`: no index, so every item was read."
    )


EXPLAIN = Field(description="How the items under the filter were found; null without a filter.")
