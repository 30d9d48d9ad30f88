"""The words that answers use; imports nothing, so that a client of the service needs no more."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["match", "ambiguous", "no_match", "out_of_distribution", "not_calibrated"]
Level = Literal["low", "medium", "high"]

MAX_TEXT_CHARACTERS = 2_000
"""The longest query in words; encoders read 64 to 248 tokens, of about four characters each."""

ChangeReason = Literal["outlier", "first_item", "promise", "probability"]
"""The reason for which another bundle answers otherwise: one of the two takes the query for an
outlier; the first item is of another label; one of the two promises too little, or is not
calibrated; or the probability fell on the other side of a threshold."""

Order = Literal["similarity", "probability"]
"""By what results are listed: how near they are, or how likely they are to be true matches."""

FilterMeans = Literal["show", "known"]
"""The meaning of a filter: `show` chooses the items to list; `known` states that a true match
passes it."""

Plan = Literal["exact", "filter_first", "search_first"]
"""The way in which items that pass a filter are found: each is compared; or the index is searched
for them alone; or it is searched for more than are wanted, and those that do not pass are left
out."""

IndexedBy = Literal["bundle", "memory", "none"]
"""The place of the index of a field: a file of the bundle; the memory, since a filter asked for the
field; or nowhere, so that every item was looked at."""

CaseReason = Literal["ambiguous", "absent", "alien", "contradicted", "random"]
"""The reason for which a query is kept for review; see `model_store.feedback.cases`."""

Absence = Literal["absent_labels", "hidden_labels", "hidden_trained_labels", "near_misses_of_views"]
"""The kind of absent calibration queries: images of labels that neither the gallery nor anything
fitted has seen; queries whose own label is hidden from the list and from the outlier detector,
of an encoder that has not learned it, or that has; or items, hidden, where queries are views."""

OutcomeBasis = Literal["evaluation", "calibration"]
"""The source of the numbers of a gallery's outcome: queries used for nothing else, or the
calibration queries, each judged by fits that have not seen it."""

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
"""Names of the numbers of a gallery's outcome; all but ``n_queries`` are shares."""

OutcomeSeverity = Literal["fact", "warning", "failure"]
"""The weight of a line of an outcome: a `warning` names a shortfall; a `failure` makes a gallery of
little use."""
