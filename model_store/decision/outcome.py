"""The outcome of a build in a few sentences; each sentence has a code and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.decision.calibration import Calibration
from model_store.decision.evidence import SIZE_CLASSES, Evidence
from model_store.decision.operating import MANY_TIMES, exact_interval
from model_store.decision.promises import Promises
from model_store.messages import OutcomeSeverity
from model_store.records import GalleryOutcome, OutcomeLine, OutcomeNumbers

LEAST_RECALL = 0.5
"""Minimum recall at 1; below this value, the outcome reports a failure."""

LEAST_MATCH_SHARE = 0.5
"""Minimum share of verdict `match`. Below this share, the outcome advises how to raise the
share."""

LEAST_CLASS_SHARE = 0.05
"""If no first item of a size class gets the verdict `match`, the outcome reports this only for a
frequent class. A class is frequent if it is the class of the first item in at least this share of
the matched queries."""

ACCEPTABLE_ERRORS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Values that the outcome may propose as the maximum error, in ascending order. If the gallery's
maximum error allows too few matches, the outcome proposes a larger maximum error."""

LEAST_GAIN = 0.1
"""The outcome proposes another maximum error only if the share of `match` increases by at least
this value."""

MANY_SERIES = 0.15
"""If at least this share of the images seems to belong to a series, the outcome warns."""

MOST_LINES = 10

_CONFIDENCE = 0.9
"""Confidence of the interval of an observed error. The outcome warns if the lower end of the
interval is above the error bound."""

Parameters = Mapping[str, float | int | str | None]

_RECALL: Mapping[str, str] = {
    "evaluation": "The first result is right for {recall_at_1} of {n_queries} evaluation queries.",
    "held_out": "The first result is right for {recall_at_1} of {n_queries} calibration queries.",
    "left_out": "The first result is right for {recall_at_1} of {n_queries} queries: {n_held_out} "
    "held out, {n_left_out} items, each compared with the rest of the gallery.",
    "items": "The first result is right for {recall_at_1} of {n_queries} items, each compared with "
    "the rest of the gallery.",
    "views": "The first result is right for {recall_at_1} of {n_queries} augmented views of items.",
    "captions": "The first result is right for {recall_at_1} of {n_queries} captions.",
}
"""Sentences on recall, by kind of the queries."""

_QUERIES = {"left_out_items": "items", "views_of_items": "views", "captions": "captions"}
"""For each kind of queries in a calibration's report, the key of `_RECALL`. A kind that is not in
this table is treated as held-out queries."""

_ABSENCE: Mapping[str, str] = {
    "absent_labels": "Measured with queries whose labels are kept out of the gallery.",
    "hidden_labels": "Measured with queries whose own label is hidden; other queries may differ.",
    "near_misses_of_views": "Measured with items that are hidden from their own lists; other "
    "queries may differ.",
}
"""Sentences on absent queries, by their kind."""

_TEXTS: Mapping[str, tuple[str, ...]] = {
    "places": ("A match is an item at most {metres} m from the query; labels have no effect.",),
    "match_share": (
        "The verdict is `match` for {match_share} of these queries.",
        "At most {max_error} of matches are wrong, with {confidence} confidence.",
        "About {guarantee_share} of similar calibrations give this guarantee.",
        "Observed error of matches: {match_error}.",
    ),
    "absent": (
        "The verdict is `match` for {false_match_rate} of queries without a match in the gallery.",
        "Upper bound from the calibration: {false_match_bound}.",
        "{absent_flagged_share} of these queries are flagged `out_of_distribution`.",
    ),
    "flagged": (
        "About {alpha} of ordinary queries are flagged `out_of_distribution`.",
        "Observed: {flagged_share}.",
    ),
    "not_calibrated": (
        "Answers have no probabilities: the gallery is not calibrated.",
        (
            "Next: `vouch-build index SOURCE --calibrate`, or `vouch-build calibrate BUNDLES "
            "--queries FILE --gallery SOURCE`."
        ),
        "For a gallery created over HTTP: `POST /v1/galleries/GALLERY/calibration`.",
    ),
    "recall_low": (
        "Recall at 1 is {recall_at_1}: this encoder does not separate such images.",
        "Try another encoder: `--encoder timm:NAME`.",
    ),
    "match_never_queries": (
        (
            "The verdict is never `match` at {max_error} error: {n_queries} queries with a match "
            "are too few."
        ),
        "About {n_more} more labelled queries would allow `match`.",
    ),
    "match_never_absent_labels": (
        (
            "The verdict is never `match` at {max_error} error: queries without a match have too "
            "few labels ({n_labels})."
        ),
        "About {n_more} more labels, with as many queries per label, would allow `match`.",
    ),
    "match_never_errors": (
        "The verdict is never `match` at {max_error} error: too many first results are wrong.",
    ),
    "match_never_bounded": ("The verdict is never `match`.", "{reason}"),
    "match_limited": (
        (
            "The limit of {max_false_match_rate} on the false-match rate allows `match` for "
            "{match_share} of queries."
        ),
        "Without this limit, {possible_share} of queries would get `match`.",
    ),
    "match_seldom_queries": (
        "The calibration queries are too few for more matches at {max_error} error.",
        "With many more labelled queries, up to {possible_share} of queries would get `match`.",
    ),
    "match_seldom_errors": (
        "With more matches, the error would exceed {max_error}.",
        "Try another encoder (`--encoder timm:NAME`), or correct the labels.",
    ),
    "match_not_for_labels": (
        "First results whose label has {size} never get the verdict `match`.",
        (
            "The calibration has {n_queries} such queries with a match; about {n_more} more would "
            "allow `match`."
        ),
    ),
    "match_not_for_labels_bounded": (
        "First results whose label has {size} never get the verdict `match`.",
        "{reason}",
    ),
    "error_above_bound": (
        "The observed error of matches is {match_error}, above the bound of {max_error}.",
        "Calibrate with queries like these: `vouch-build calibrate BUNDLES --queries FILE`.",
    ),
    "flagged_often": (
        (
            "{flagged_share} of these queries are flagged `out_of_distribution`, and {alpha} are "
            "expected: the queries are unlike the calibration queries."
        ),
        "Calibrate with queries like these: `vouch-build calibrate BUNDLES --queries FILE`.",
    ),
    "match_not_guaranteed": ("The verdict `match` is not guaranteed for all queries.", "{reason}"),
    "false_match_rate_unknown": ("The false-match rate is not known: {reason}.",),
    "false_match_rate_uncertain": ("The false-match rate may be higher: {reason}.",),
    "only_views": (
        "Augmented views are easier than new photographs.",
        "Calibrate with real queries: `vouch-build calibrate BUNDLES --queries FILE`.",
    ),
    "series": (
        (
            "{series_share} of the images have a few images of their label that are far more "
            "similar than the others, as in a series of photographs."
        ),
        (
            "New photographs have none: they get fewer right results and more wrong matches than "
            "stated, and many may be flagged `out_of_distribution`."
        ),
        "Name the series of each image in a column `group`, and build again.",
        "For items added to a served gallery, use the metadata field `group`, and recalibrate.",
    ),
    "never_flagged": (
        (
            "No query can be flagged `out_of_distribution` at {alpha}: there are {n_queries} "
            "calibration queries, and {n_needed} are needed."
        ),
    ),
}
"""Sentences by code. If a parameter of a sentence is None, the sentence is left out. Shares are
shown in percent, and parameters ``…_number`` as plain numbers."""

_ACCEPT = (
    "With an error of {accepted_error} (`vouch-build calibrate BUNDLES --max-error "
    "{accepted_error_number}`), {accepted_share} of queries get `match`."
)
"""Sentence that is added to a line about too few matches."""

_ACCEPT_OF_PLACES = (
    "With an error of {accepted_error} (`vouch-build calibrate BUNDLES --queries FILE --max-error "
    "{accepted_error_number}`), {accepted_share} of queries get `match`."
)
"""The sentence where places define matches: a bundle does not store the places of its queries."""

_SIZES = {"one": "one item", "few": "2 to 5 items", "many": "more than 5 items"}


def outcome_of(
    calibration: Calibration | None, evaluation: Mapping[str, Any] | None = None
) -> GalleryOutcome:
    """Return the outcome of a build.

    Parameters
    ----------
    calibration : calibration of the gallery; None if it is not calibrated.
    evaluation : the report of an evaluation, or the ``metrics`` of a manifest. The numbers of the
        evaluation replace the numbers of the calibration queries. Calibrations before release 0.3
        have numbers that ignore the out-of-distribution flag.
    """
    if calibration is None:
        return GalleryOutcome(
            **dict.fromkeys(OutcomeNumbers.model_fields),
            lines=[_line("not_calibrated", "warning", {})],
        )
    evidence, promises = calibration.evidence.of_order(calibration.order), calibration.promises()
    found = _cross_fitted(calibration, evidence, promises)
    verdicts = {} if evaluation is None else evaluation.get("verdicts", {})
    if evaluation is not None and "matched" in verdicts:
        found = found.model_copy(update=_evaluated(calibration, evaluation))
    absent_evaluated = "near" in verdicts
    if absent_evaluated:
        found = found.model_copy(
            update={
                "false_match_rate": float(verdicts["near"].get("match", 0.0)),
                "absent_flagged_share": float(verdicts["near"].get("out_of_distribution", 0.0)),
            }
        )
    shortfalls = []
    if found.recall_at_1 is not None and found.recall_at_1 < LEAST_RECALL:
        shortfalls.append(_line("recall_low", "failure", {"recall_at_1": found.recall_at_1}))
    shortfalls += [
        *_of_matches(calibration, evidence, promises, found),
        *_of_evidence(calibration, promises, found, absent_evaluated=absent_evaluated),
    ]
    shortfalls.sort(key=lambda line: line.severity != "failure")
    facts = _facts(calibration, promises, found, absent_evaluated=absent_evaluated)
    return found.model_copy(update={"lines": [*facts, *shortfalls][:MOST_LINES]})


def _line(code: str, severity: OutcomeSeverity, parameters: Parameters) -> OutcomeLine:
    """Return a line with its sentences; an unknown parameter is None."""
    texts = list(_TEXTS.get(code, ()))
    if code == "recall_at_1":
        texts.append(_RECALL[str(parameters["queries"])])
    elif code == "absent":
        texts += [text for name, text in _ABSENCE.items() if name == parameters["absence"]]
    elif "accepted_error" in parameters:
        texts.append(_ACCEPT if parameters.get("within") is None else _ACCEPT_OF_PLACES)
    shown: dict[str, str] = {}
    for name, value in parameters.items():
        if isinstance(value, float):
            shown |= {name: percent(value), f"{name}_number": f"{value:g}"}
        elif value is not None:
            shown[name] = f"{value:,}" if isinstance(value, int) else value
    sentence = " ".join(text.format(**shown) for text in texts if _is_known(text, shown))
    return OutcomeLine(code=code, severity=severity, parameters=dict(parameters), sentence=sentence)


def percent(share: float) -> str:
    """Return a share in percent, such as "94 %"; only exact shares give "0 %" or "100 %"."""
    value = 100 * share
    if 0 < value < 0.1:
        return "under 0.1 %"
    if 99.9 < value < 100:
        return "over 99.9 %"
    digits = 0 if 10 <= value <= 99 else 1
    return f"{value:.{digits}f}".removesuffix(".0") + " %"


def _is_known(text: str, shown: Mapping[str, str]) -> bool:
    """Return whether all parameters of a sentence are known."""
    return {part.split("}")[0] for part in text.split("{")[1:]} <= set(shown)


def _cross_fitted(
    calibration: Calibration, evidence: Evidence, promises: Promises
) -> GalleryOutcome:
    """Return the numbers of the calibration queries."""
    present, called = ~evidence.absent, promises.accepted
    point, flagged = promises.point_of(called), _flagged(calibration)
    absent_known = evidence.absent.any() and promises.unknown_absence is None
    return GalleryOutcome(
        basis="calibration",
        n_queries=int(present.sum()),
        recall_at_1=float(evidence.correct[present].mean()),
        match_share=_called_share(calibration),
        match_error=point.error if called.any() else None,
        match_error_bound=point.error_bound if called.any() else None,
        max_error=calibration.max_error,
        false_match_rate=point.false_match_rate if absent_known else None,
        false_match_bound=point.false_match_bound if absent_known else None,
        flagged_share=None if flagged is None else float(flagged[present].mean()),
        absent_flagged_share=float(flagged[~present].mean())
        if flagged is not None and absent_known
        else None,
        lines=[],
    )


def _flagged(calibration: Calibration) -> NDArray[np.bool_] | None:
    """Return a mask (N,) of calibration queries flagged out of distribution; None if not known."""
    p_values = calibration.evidence.outlier_p_values
    return None if p_values is None else p_values <= calibration.alpha


def _evaluated(calibration: Calibration, evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of an evaluation, for its queries with a match."""
    matched, absent = evaluation["verdicts"]["matched"], evaluation["verdicts"].get("near")
    share = 0.0 if absent is None else calibration.default_share
    match_share = float(matched.get("match", 0.0))
    of_present = (1 - share) * match_share
    of_absent = 0.0 if absent is None else share * float(absent.get("match", 0.0))
    wrong = of_present * (evaluation["orders"][calibration.order]["match_error"] or 0.0) + of_absent
    answered = of_present + of_absent
    return {
        "basis": "evaluation",
        "n_queries": int(evaluation["n_queries"]),
        "recall_at_1": float(evaluation["recall_at_1"]),
        "match_share": match_share,
        "match_error": wrong / answered if answered else None,
        "flagged_share": float(matched.get("out_of_distribution", 0.0)),
    }


def _called_share(calibration: Calibration) -> float:
    """Return the share of calibration queries with a match that get the verdict `match`."""
    called = calibration.promises().accepted
    return float(called[~calibration.evidence.absent].mean())


def _facts(
    calibration: Calibration, promises: Promises, found: GalleryOutcome, *, absent_evaluated: bool
) -> Iterator[OutcomeLine]:
    """Yield the lines that state the numbers.

    Parameters
    ----------
    absent_evaluated : whether the evaluation had absent queries.
    """
    if calibration.within is not None:
        yield _fact("places", metres=f"{calibration.within:g}")
    report = calibration.report
    n_left_out = int(report.get("n_leave_one_out", 0))
    queries = _QUERIES.get(str(report.get("queries")), "left_out" if n_left_out else "held_out")
    yield _fact(
        "recall_at_1",
        queries="evaluation" if found.basis == "evaluation" else queries,
        recall_at_1=found.recall_at_1,
        n_queries=found.n_queries,
        n_held_out=int((~calibration.evidence.absent).sum()) - n_left_out,
        n_left_out=n_left_out,
    )
    if promises.gives_matches:
        holds = promises.gives_guarantee and not _refutes(calibration, found)
        yield _fact(
            "match_share",
            match_share=found.match_share,
            max_error=found.max_error,
            confidence=1 - calibration.delta if holds else None,
            guarantee_share=report.get("guarantee_share") if holds else None,
            match_error=found.match_error,
            match_error_bound=found.match_error_bound,
        )
    if promises.gives_matches and found.false_match_rate is not None:
        yield _fact(
            "absent",
            absence=_absence(calibration, absent_evaluated=absent_evaluated),
            false_match_rate=found.false_match_rate,
            false_match_bound=found.false_match_bound,
            absent_flagged_share=found.absent_flagged_share,
        )
    yield _fact("flagged", alpha=calibration.alpha, flagged_share=found.flagged_share)


def _absence(calibration: Calibration, *, absent_evaluated: bool) -> str | None:
    """Return the kind of the absent queries; None if places define matches, not labels."""
    if calibration.within is not None:
        return None
    return "absent_labels" if absent_evaluated else calibration.evidence.absence


def _refutes(calibration: Calibration, found: OutcomeNumbers) -> bool:
    """Return whether an evaluation has more wrong matches than the error bound explains."""
    if found.basis != "evaluation":
        return False
    n_matches = round((found.match_share or 0.0) * (found.n_queries or 0))
    least, _ = exact_interval(found.match_error or 0.0, n_matches, _CONFIDENCE)
    return least > calibration.max_error


def _are_unlike(calibration: Calibration, found: OutcomeNumbers) -> bool:
    """Return whether an evaluation has more than twice as many flagged queries as expected."""
    if found.basis != "evaluation":
        return False
    least, _ = exact_interval(found.flagged_share or 0.0, found.n_queries or 0, _CONFIDENCE)
    return least > 2 * calibration.alpha


def _fact(code: str, **parameters: float | str | None) -> OutcomeLine:
    return _line(code, "fact", parameters)


def _of_matches(
    calibration: Calibration, evidence: Evidence, promises: Promises, found: GalleryOutcome
) -> Iterator[OutcomeLine]:
    """Yield lines about too few matches, and about too many wrong matches.

    Parameters
    ----------
    evidence : outcomes of the calibration queries, for lists in the gallery's default order.
    """
    if not promises.gives_matches:
        code, parameters = _why_never(calibration, evidence, promises)
        yield _line(code, "failure", parameters)
        return
    if not promises.gives_guarantee:
        reasons = [one.shortfall for one in promises.matches if math.isfinite(one.threshold)]
        yield _line("match_not_guaranteed", "warning", {"reason": reasons[0]})
    present, match_share = ~evidence.absent, found.match_share or 0.0
    for place, promise in enumerate(promises.matches):
        rows = evidence.first_classes == place
        n_queries = int((rows & present).sum())
        if promise.point is None and n_queries >= LEAST_CLASS_SHARE * present.sum():
            stream = promises.stream.at_rows(rows)
            needed = stream.queries_needed(calibration.max_error)
            code, parameters = "match_not_for_labels_bounded", {"reason": promise.shortfall}
            if needed is not None:
                code = "match_not_for_labels"
                parameters = {
                    "n_queries": stream.n_answered,
                    "n_more": _about(needed - stream.n_answered),
                }
            size = {"size": _SIZES[promise.size_class]}
            yield _line(code, "warning", size | parameters)
    if _refutes(calibration, found):  # then shares of the calibration are no forecast either
        parameters = {"match_error": found.match_error, "max_error": calibration.max_error}
        yield _line("error_above_bound", "warning", parameters)
    elif _are_unlike(calibration, found):
        parameters = {"flagged_share": found.flagged_share, "alpha": calibration.alpha}
        yield _line("flagged_often", "warning", parameters)
    elif match_share < LEAST_MATCH_SHARE:
        code, parameters = _why_seldom(calibration, promises, match_share)
        yield _line(code, "warning" if match_share else "failure", parameters)


def _why_never(
    calibration: Calibration, evidence: Evidence, promises: Promises
) -> tuple[str, Parameters]:
    """Return the reason why no query gets the verdict `match`: a code and its parameters.

    The size classes can have different reasons. The function returns the reason for the size class
    to which most first items of matched queries belong.
    """
    present, max_error = ~evidence.absent, calibration.max_error
    place = int(np.bincount(evidence.first_classes[present], minlength=len(SIZE_CLASSES)).argmax())
    stream = promises.stream.at_rows(evidence.first_classes == place)
    bounded = {"reason": promises.matches[place].shortfall}
    if (
        promises.unknown_absence is not None
        or stream.widest(max_error) is not None
        or stream.is_lowered_by_feedback(max_error)
    ):
        return "match_never_bounded", bounded
    parameters = {"max_error": max_error, **_accepted(calibration, 0.0)}
    n_queries, n_labels = int(present.sum()), promises.stream.n_labels
    times = stream.multiple(max_error, of_labels=False)
    if times is not None:
        n_more = _about((times - 1) * n_queries)
        return "match_never_queries", {"n_queries": n_queries, "n_more": n_more, **parameters}
    times = stream.multiple(max_error, of_labels=True)
    if times is None:
        if stream.possible_share(max_error) is not None:
            return "match_never_bounded", bounded
        return "match_never_errors", parameters
    n_more = _about((times - 1) * n_labels)
    return "match_never_absent_labels", {"n_labels": n_labels, "n_more": n_more, **parameters}


def _why_seldom(
    calibration: Calibration, promises: Promises, match_share: float
) -> tuple[str, Parameters]:
    """Return the reason why too few queries get `match`: a code and its parameters."""
    enough = match_share + LEAST_GAIN
    if calibration.max_false_match_rate is not None:
        without = _called_share(replace(calibration, max_false_match_rate=None))
        if without >= enough:
            return "match_limited", {
                "max_false_match_rate": calibration.max_false_match_rate,
                "match_share": match_share,
                "possible_share": without,
            }
    possible = _possible_share(promises, calibration.max_error)
    accepted = {"max_error": calibration.max_error, **_accepted(calibration, match_share)}
    if possible >= enough:
        return "match_seldom_queries", {"possible_share": possible, **accepted}
    return "match_seldom_errors", accepted


def _possible_share(promises: Promises, max_error: float) -> float:
    """Return the share of verdict `match` that would be possible with more calibration queries.

    The function multiplies the present number of calibration queries by `MANY_TIMES`, and assumes
    that the additional queries have the same shares of right and wrong answers.
    """
    stream = promises.stream
    threshold = stream.multiplied(MANY_TIMES, MANY_TIMES).widest(max_error)
    if threshold is None:
        return 0.0
    accepted = stream.chosen & (stream.probabilities >= threshold)
    return float(accepted[~stream.absent].mean())


def _about(n: float) -> int:
    """Return ``n`` rounded up to a round number: 57 to 60, 123 to 150."""
    step = 5 * 10 ** max(int(math.log10(max(n, 1))) - 1, 0)
    return int(step * math.ceil(n / step))


def _accepted(calibration: Calibration, match_share: float) -> dict[str, float | None]:
    """Return the smallest of `ACCEPTABLE_ERRORS` that adds enough matches, and its `match` share.

    Parameters
    ----------
    match_share : share of queries with a match that get the verdict `match` at the present error.
    """
    for error in ACCEPTABLE_ERRORS:
        if error > calibration.max_error:
            share = _called_share(replace(calibration, max_error=error))
            if share >= match_share + LEAST_GAIN:
                of_places = {} if calibration.within is None else {"within": calibration.within}
                return {"accepted_error": error, "accepted_share": share, **of_places}
    return {"accepted_error": None, "accepted_share": None}


def _of_evidence(
    calibration: Calibration, promises: Promises, found: GalleryOutcome, *, absent_evaluated: bool
) -> Iterator[OutcomeLine]:
    """Yield lines about shortfalls of the calibration queries."""
    if promises.unknown_rate is not None:
        known = absent_evaluated or promises.unknown_absence is None
        code = "false_match_rate_uncertain" if known else "false_match_rate_unknown"
        yield _line(code, "warning", {"reason": promises.unknown_rate})
    if calibration.report.get("queries") == "views_of_items" and found.basis == "calibration":
        yield _line("only_views", "warning", {})
    share = calibration.report.get("series_share")
    if share is not None and share >= MANY_SERIES:
        yield _line("series", "warning", {"series_share": share})
    n, alpha = len(calibration.outlier_scores), calibration.alpha
    if alpha * (n + 1) < 1:
        n_needed = math.ceil(1 / alpha) - 1
        parameters = {"alpha": alpha, "n_queries": n, "n_needed": n_needed}
        yield _line("never_flagged", "warning", parameters)
