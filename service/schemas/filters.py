"""Schemas of filters: how one is sent, and how the items that pass it were found."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Field

from model_store.verdicts import IndexedBy, Plan


def _as_text(value: object) -> object:
    """A filter as the text of its JSON, whether it came as that or as an object."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


FilterText = Annotated[str | None, BeforeValidator(_as_text)]

FILTER_DESCRIPTION = (
    'Which items may be found, as JSON: `{"label": "shoe", "year": {"gte": 2000}}`. Fields are '
    "`id`, `label` and keys of the metadata, with dots into objects; a bare value means `eq`, the "
    "other comparisons are `ne`, `in`, `gt`, `gte`, `lt`, `lte`, `has` (a list holds it) and "
    "`exists`; `and`, `or` and `not` join filters. A filter restricts what is listed: match "
    "probabilities are those of the whole gallery, see `filter_means`."
)


class Explanation(BaseModel):
    """The way in which the items that pass a filter were found."""

    plan: Plan = Field(
        description="`exact`: each item that passes was compared; `filter_first`: the index was "
        "searched for items that pass; `search_first`: it was searched for more items than were "
        "wanted, and those that do not pass were left out."
    )
    estimated_share: float = Field(description="Of the gallery's items, those that pass.")
    indexes: dict[str, IndexedBy] = Field(
        description="The fields that the filter asks for, and where their indexes are: in the "
        "`bundle`; in `memory`, since the field was first asked for; or nowhere (`none`), so that "
        "every item was looked at."
    )


EXPLAIN = Field(description="How the items under the filter were found; null without a filter.")
