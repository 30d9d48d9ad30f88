"""Formats answers as plain text, with the verdict first."""

from __future__ import annotations

from collections.abc import Iterable

from model_store.verdicts import Verdict
from service import schemas

VERDICT_WORDS: dict[Verdict, str] = {
    "match": "The first result is a confident match.",
    "ambiguous": "A result may match, but the error bound does not cover it. Compare by eye.",
    "no_match": "The gallery probably has no match. The nearest items are look-alikes.",
    "out_of_distribution": "The image is unlike the calibration images. Results are unreliable.",
    "not_calibrated": "The gallery is not calibrated: results are ranked, without probabilities.",
}

_CALIBRATION_WORDS: dict[schemas.CalibrationStatus, str] = {
    "valid": "The calibration is valid: you can rely on probabilities and verdicts.",
    "drifting": "Recent queries differ from the calibration queries: no guarantee holds now.",
    "stale": "The calibration is stale: no query gets `match`, and no guarantee holds.",
    "missing": VERDICT_WORDS["not_calibrated"],
}

_SIZES = {"one": "one item", "few": "2 to 5 items", "many": "more than 5 items"}


def search_in_words(answer: schemas.SearchAnswer) -> str:
    """Return the answer to a search as text."""
    found = [(one.id, one.label, one.similarity, one.match_probability) for one in answer.results]
    return _lines([*_verdict(answer), *_query(answer.query), *_ranked(found)])


def decision_in_words(answer: schemas.DecisionAnswer) -> str:
    """Return the text that describes a decision on neighbours from another store."""
    found = [
        (one.id, one.label, one.similarity, one.match_probability) for one in answer.neighbours
    ]
    return _lines([*_verdict(answer), *_query(answer.query), *_ranked(found[:10])])


def assessment_in_words(answer: schemas.AssessmentAnswer) -> str:
    """Return an assessment as text. It has no verdict, so the text begins with the outlier test."""
    ood = answer.query.ood
    if ood.flag:
        parts = f"out_of_distribution: {VERDICT_WORDS['out_of_distribution']}"
    elif ood.flag is None and answer.bundle.calibration.status == "missing":
        parts = f"not_calibrated: {VERDICT_WORDS['not_calibrated']}"
    elif ood.flag is None:
        parts = f"not tested: {ood.reason}"
    else:
        parts = "ordinary: This is the kind of image that the model knows; search with it."
    hints = [f"{one.code}: {one.advice}" for one in answer.quality.hints]
    return _lines([parts, *_query(answer.query), *hints])


def calibration_in_words(report: schemas.CalibrationReport) -> str:
    """Return the calibration of a gallery as text."""
    parts = [f"{report.status}: {_CALIBRATION_WORDS[report.status]}"]
    if report.status != "missing":
        parts.append(f"Calibrated with {report.n_queries} queries.")
    if report.point is not None:
        point = report.point
        parts.append(
            f"{_percent(point.coverage)} of queries get a match; {_percent(point.error)} of these "
            f"matches are wrong, at most {_percent(point.error_bound)} with confidence "
            f"{_percent(1 - (report.delta or 0))}."
        )
    parts += [
        f"No `match` for labels with {_SIZES[one.size_class]}: {one.reason}"
        for one in report.matches
        if one.threshold is None and one.n_labels > 0
    ]
    if report.top1_ece is not None:
        parts.append(f"Expected calibration error of first results: {report.top1_ece:.3f}.")
    parts += [
        f"AUROC of the outlier test against {kind} images: {value:.3f}."
        for kind, value in report.outlier_auroc.items()
    ]
    return _lines(parts)


def _verdict(answer: schemas.SearchAnswer | schemas.DecisionAnswer) -> list[str]:
    words = VERDICT_WORDS[answer.verdict]
    if answer.verdict == "match" and not answer.guaranteed:
        words = "The first result probably matches, without a guarantee."
    parts = [f"{answer.verdict}: {words}"]
    if answer.reason is not None:
        parts.append(answer.reason)
    if answer.roll_up is not None:
        rolled = answer.roll_up
        parts.append(
            f"The label is uncertain; its parent {rolled.label!r} ({rolled.level}) has the "
            f"probability {_percent(rolled.probability)}."
        )
    if answer.no_match_probability is not None:
        nothing = _percent(answer.no_match_probability)
        parts.append(f"Probability that the gallery has no match: {nothing}.")
    return parts


def _query(query: schemas.Query) -> list[str]:
    parts = []
    if query.uncertainty.percentile is not None:
        spread = _percent(query.uncertainty.percentile / 100)
        parts.append(f"Less certain than {spread} of ordinary queries.")
    if query.ood.p_value is not None:
        parts.append(f"Outlier test: p = {query.ood.p_value:.3g}, alpha = {query.ood.alpha:g}.")
    return parts


def _ranked(found: Iterable[tuple[str, str | None, float, float | None]]) -> list[str]:
    """Return one line per item: label, similarity and probability."""
    return [
        f"{rank}. {item_id}"
        + (f" ({label})" if label is not None else "")
        + f": similarity {similarity:.3f}"
        + (f", match probability {_percent(probability)}" if probability is not None else "")
        for rank, (item_id, label, similarity, probability) in enumerate(found, 1)
    ]


def _percent(share: float) -> str:
    """Return a share in percent; a share close to 0 or 1 is never rounded to 0 % or 100 %."""
    if 0.999 < share < 1:
        return "over 99.9 %"
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.1f} %"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
