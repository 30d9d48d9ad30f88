"""The fixed words in answers. The module has no imports, so that a client can use it alone."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["match", "ambiguous", "no_match", "out_of_distribution", "not_calibrated"]
Level = Literal["low", "medium", "high"]

MAX_TEXT_CHARACTERS = 2_000
"""Maximum number of characters of a text query. Encoders read 64 to 248 tokens of about four
characters."""

ChangeReason = Literal["outlier", "first_item", "promise", "probability"]
"""Reason why two bundles give different answers. `outlier`: only one bundle flags the query as an
outlier. `first_item`: the first items have different labels. `promise`: one bundle has fewer
guarantees than the other bundle, or has no calibration. `probability`: the probabilities are on
different sides of a threshold."""

Order = Literal["similarity", "probability"]
"""Order of results: by similarity, or by match probability."""

FilterMeans = Literal["show", "known"]
"""The meaning of a filter: `show` chooses the items to list; `known` also states that every true
match passes the filter."""

Plan = Literal["exact", "filter_first", "search_first"]
"""How items that pass a filter are found. `exact`: the query is compared with each item that passes
the filter. `filter_first`: the index is searched only among the items that pass the filter.
`search_first`: the index is searched for more items than requested, and the filter is applied to
the result."""

IndexedBy = Literal["bundle", "memory", "none"]
"""Where the index of a field is stored. `bundle`: in a file of the bundle. `memory`: in memory,
after a filter has used the field. `none`: there is no index, so every item is checked."""

CaseReason = Literal["ambiguous", "absent", "alien", "contradicted", "random"]
"""Reason for a review of a query; see `model_store.feedback.cases`."""

Absence = Literal["absent_labels", "hidden_labels", "hidden_trained_labels", "near_misses_of_views"]
"""Kind of absent calibration queries. `absent_labels`: neither the gallery nor any fit contains the
query's label. `hidden_labels`: the query's label is hidden from the list and the outlier detector,
and the encoder was not trained on this label. `hidden_trained_labels`: as `hidden_labels`, but the
encoder was trained on the query's label. `near_misses_of_views`: each query is a view of an item,
and this item is hidden from the list."""

OutcomeBasis = Literal["evaluation", "calibration"]
"""Source of the numbers of a gallery's outcome: separate evaluation queries, or the calibration
queries. Each calibration query is predicted by models that were fitted to other queries."""

OUTCOME_NUMBERS = (
    "n_queries",
    "recall_at_1",
    "match_share",
    "match_error",
    "match_error_bound",
    "max_error",
    "false_match_rate",
    "false_match_bound",
    "flagged_share",
    "absent_flagged_share",
)
"""Names of the numbers of a gallery's outcome; all except ``n_queries`` are shares."""

OutcomeSeverity = Literal["fact", "warning", "failure"]
"""Severity of an outcome's line. A `warning` is a shortfall. A `failure` means that the gallery is
useful only after a change."""
