"""The words of answers: fixed words, and the catalogue of messages.

Each reason in an answer has a stable code and parameters. Programs and translations use the code.
This module makes the English sentence from the code; the sentence may change in every release. A
parameter can also be a message, for example ``cause`` in "probabilities may be far off: {cause}".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
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


MESSAGES: Mapping[str, str] = MappingProxyType(
    {
        # The error of matches, and the share of absent queries that get a match.
        "error_not_bounded": "An error of at most {max_error} among matches cannot be promised: "
        "there are {n_queries} calibration queries with a match{queries}, {needed}.",
        "error_not_bounded_at_level": "An error of at most {max_error} among answers of the level "
        "{level} cannot be promised: {n_queries} calibration queries have a match and no finer "
        "answer, {needed}.",
        "first_item_one": " whose first item is the only one of its label",
        "first_item_few": " whose first item has a label with 2 to 5 items",
        "first_item_many": " whose first item has a label with more than 5 items",
        "answered_queries_needed": "at least {n_needed} answered queries are needed",
        "queries_needed": "about {n_needed} would be enough",
        "absent_labels_needed": "but queries without a match have only {n_labels} labels; about "
        "{n_more} more labels would be enough",
        "feedback_lowers_probabilities": "but the feedback on {n_pairs} results lowers the match "
        "probabilities, possibly because more than a share of {share} of the queries was absent; "
        "`vouch-build rollback BUNDLES` returns to the previous bundle",
        "too_many_first_results_wrong": "but too many first results are wrong",
        "absent_share_too_large": "but a share of {share} absent queries is too large; a share of "
        "{possible} is small enough",
        "false_matches_not_bounded": "A match for at most {max_false_match_rate} of the absent "
        "queries cannot be promised: {cause}.",
        "absent_queries_too_few": "the absent calibration queries have {n_labels} labels, but "
        "{n_needed} or more labels are needed",
        "absent_labels_too_few": "{n_labels} labels of absent calibration queries are too few to "
        "predict other absent queries; {n_more} more labels are needed, in the gallery or "
        "withheld from the gallery",
        "absent_labels_too_few_for_share": "{n_labels} labels of absent calibration queries are "
        "too few for a share of {share} absent queries; at least {n_more} more labels are "
        "needed",
        "error_bounded_for_matched_queries": "The error of matches is guaranteed for queries with "
        "a match only: {cause}.",
        "absent_unknown_trained_labels": "queries of labels that the encoder was trained on do "
        "not represent absent queries; withhold some labels from training and gallery, or "
        "calibrate with at least 50 queries without a match",
        "probabilities_uncertain": "With a share of {share} absent queries, probabilities may be "
        "far off: {cause}.",
        "error_and_probabilities_uncertain": "With a share of {share} absent queries, no error "
        "among matches can be promised, and probabilities may be far off: {cause}.",
        "label_added": "The label of the first item was added after the calibration, so its items "
        "get no `match`. Run `vouch-build calibrate BUNDLES`, unless the service recalibrates "
        "automatically.",
        # Result sets.
        "coverage_needs_queries": "A coverage of {coverage} needs {n_needed} independent "
        "calibration queries with a match{queries}; there are {n_effective}.",
        "coverage_out_of_reach": "Of the calibration queries with a match{queries}, only a share "
        "of {reached} have the match among their candidates. This share is too small to "
        "promise a coverage of {coverage}.",
        "labels_of_size": " of labels with {size} ({n_labels} of {n_all} labels)",
        "size_one": "one item",
        "size_few": "2 to 5 items",
        "size_many": "more than 5 items",
        "coverage_not_under_filter": "A coverage is promised only for searches of the whole "
        "gallery, because a filter may exclude the true match.",
        "place_divided_by_filter": "The filter excludes the most similar item of this place. The "
        "error bound does not hold for other items of the place, because they can be further away.",
        # The state of a calibration.
        "search_changed": "The gallery was calibrated with the search settings {calibrated}, but "
        "is searched with {searched}. {advice}",
        "items_changed": "{n_changed} items have been added, replaced or removed since the "
        "gallery was calibrated with {n_calibrated} items; changes of up to {tolerated} % are "
        "tolerated. {advice}",
        "calibrate_again": "Run `vouch-build calibrate BUNDLES`, which fits the calibration again "
        "without an image, unless the service recalibrates automatically.",
        "calibrate_texts_again": "Run `vouch-build calibrate BUNDLES --captions FILE`.",
        "calibrate_places_again": "Run `vouch-build calibrate BUNDLES --queries FILE`: the bundle "
        "does not store the positions of its calibration queries.",
        "build_again": "The gallery is in a database, so build it again: `vouch-build index "
        "--calibrate` or `vouch-build all`.",
        "labels_gone": "{n_gone} labels have lost their last item since the calibration. Queries "
        "of these labels have no match now, so the guarantees do not hold. Run `vouch-build "
        "calibrate BUNDLES`, unless the service recalibrates automatically.",
        "labels_gone_for_texts": "{n_gone} labels have lost their last item since the calibration "
        "for texts. Texts about these labels have no match now, so the guarantees do not hold. "
        "Run `vouch-build calibrate BUNDLES --captions FILE`.",
        "too_many_errors": "Of {n} matches that were drawn at random and reviewed, {n_wrong} are "
        "wrong. The accepted share of {max_error} does not explain so many errors. Calibrate "
        "again with queries like the served queries, or with the feedback (`vouch-build "
        "calibrate --feedback`).",
        "drifted": "Your recent queries differ from the calibration queries, so the guarantees do "
        "not hold for them: probabilities may be wrong. The operator should check the queries, "
        "and either acknowledge them (`POST …/calibration/acknowledge`) or run `vouch-build "
        "calibrate` with similar queries.",
        "drift_not_tested": "The bundle contains no outlier scores of absent queries, so drift is "
        "not tested. Run `vouch-build calibrate BUNDLES`, which fits the calibration again "
        "without an image.",
        "bundle_unreadable": "The bundle cannot be read. {cause}",
        # Missing probabilities, and options without effect.
        "gallery_empty": "The gallery is empty, so no query has a match in it. Add items.",
        "no_item_passes_filter": "No item passes the filter, so there are no results. "
        "`GET …/facets` lists the fields of the items and their values.",
        "gallery_not_calibrated": "This gallery of {n_items} items is not calibrated yet, so it "
        "gives no probabilities and no matches. Add the items. Then calibrate the gallery: "
        '"Set up guarantees" on the page does so with the items as queries. With other queries: '
        "`vouch-build calibrate {gallery} --queries FILE --gallery FILE`, in the directory of "
        "galleries.",
        "texts_not_calibrated": "The gallery is not calibrated for text queries, and the "
        "calibration of images is not valid for them. Run `vouch-build calibrate BUNDLES "
        "--captions`.",
        "options_without_effect": "The gallery is not calibrated, so {options} had no effect.",
        "items_have_no_probability": "Items as queries have no probabilities: the calibration is "
        "valid for queries outside the gallery, and items have no outlier score.",
        "alpha_too_small": "With {n_queries} calibration queries, no p-value is below {least}. At "
        "alpha = {alpha}, no query can be flagged; a flag needs {n_needed} calibration "
        "queries.",
        "fields_not_counted": "The engine of this gallery does not count values of fields. "
        "Filters can still use any field.",
    }
)
"""Templates by code. A parameter: a number, a text, or a message."""


class Message(str):
    """A sentence, with its code and parameters.

    Attributes
    ----------
    code : a key of `MESSAGES`; ``several`` for joined sentences.
    parameters : values by their names in the template: numbers, texts and messages.
    """

    __slots__ = ("code", "parameters")
    code: str
    parameters: Mapping[str, object]

    def as_json(self) -> dict[str, object]:
        """Return the code and the parameters; a parameter that is a message is converted too."""
        return {
            "code": self.code,
            "parameters": {name: _plain(value) for name, value in self.parameters.items()},
        }


def message(code: str, **parameters: object) -> Message:
    """Make the sentence of ``code``.

    Parameters
    ----------
    parameters : all parameters of the template, and no others. Floats are shown with six digits.
        Use "" for an absent part.

    Raises
    ------
    KeyError : the code does not exist, or a parameter is missing.
    """
    shown = {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in parameters.items()
    }
    return _made(MESSAGES[code].format_map(shown), code, parameters)


def joined(messages: Iterable[Message]) -> Message | None:
    """Return several sentences as one message; None if there are none."""
    several = list(messages)
    if len(several) < 2:
        return several[0] if several else None
    return _made(" ".join(several), "several", {"messages": several})


def _made(text: str, code: str, parameters: Mapping[str, object]) -> Message:
    made = Message(text)
    made.code, made.parameters = code, dict(parameters)
    return made


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return value.as_json()
    return [_plain(one) for one in value] if isinstance(value, list) else value
