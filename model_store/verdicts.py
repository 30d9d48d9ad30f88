"""The fixed words in answers. The module has no imports, so that a client can use it alone."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["match", "ambiguous", "no_match", "out_of_distribution", "not_calibrated"]
Level = Literal["low", "medium", "high"]

MAX_TEXT_CHARACTERS = 2_000
"""Maximum length of a text query; encoders read 64 to 248 tokens of about four characters."""

ChangeReason = Literal["outlier", "first_item", "promise", "probability"]
"""Reason why two bundles give different answers: only one flags the query as an outlier; the first
items have different labels; one has fewer guarantees or no calibration; or the probability is on
the other side of a threshold."""

Order = Literal["similarity", "probability"]
"""Order of results: by similarity, or by match probability."""

FilterMeans = Literal["show", "known"]
"""The meaning of a filter: `show` chooses the items to list; `known` states that a true match
passes it."""

Plan = Literal["exact", "filter_first", "search_first"]
"""How items that pass a filter are found: each is compared; or the index is searched only among
them; or the index is searched for more items than requested, and the filter is applied to the
result."""

IndexedBy = Literal["bundle", "memory", "none"]
"""Where the index of a field is stored: in a file of the bundle; in memory, after a filter has used
the field; or nowhere, so that every item is checked."""

CaseReason = Literal["ambiguous", "absent", "alien", "contradicted", "random"]
"""Reason for a review of a query; see `model_store.feedback.cases`."""

Absence = Literal["absent_labels", "hidden_labels", "hidden_trained_labels", "near_misses_of_views"]
"""Kind of absent calibration queries: images of labels that are in neither the gallery nor any fit;
queries whose own label is hidden from the list and the outlier detector, with an encoder not
trained on it, or trained on it; or views of hidden items."""

OutcomeBasis = Literal["evaluation", "calibration"]
"""Source of the numbers of a gallery's outcome: separate evaluation queries, or the calibration
queries, each judged by fits without that query."""

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
"""Severity of an outcome's line: a `warning` is a shortfall; with a `failure`, the gallery is of
little use."""
