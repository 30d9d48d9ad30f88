"""The statements of a certificate: population, guarantees, missing guarantees, feedback since."""

from __future__ import annotations

import math
import sqlite3
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from index_builder.metrics import auroc, calibration_error, reliability
from model_store.bundles.directory import locate
from model_store.bundles.manifest import EVALUATION_FILE, Manifest, read_manifest
from model_store.decision import (
    SIZE_CLASSES,
    Absence,
    Calibration,
    DriftTest,
    ErrorTest,
    MatchDraw,
    MatchReview,
    MatchThreshold,
    Promises,
    estimate_error,
)
from model_store.decision.calibration import ARRAYS_FILE, CALIBRATION_FILE, TOLERATED_CHANGES
from model_store.decision.promises import MOST_UNKNOWN
from model_store.errors import CertificateError, WriteError
from model_store.feedback import FeedbackLog
from model_store.messages import message
from model_store.records import OperatingPoint
from model_store.watch_states import ALL_CALLERS, DriftStates

N_STEPS = 12
"""Number of values of the evidence that a certificate lists. The reviews are divided into this
number of parts of equal size. Each value includes all reviews up to the end of a part."""

_Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ServedProbabilities(_Strict):
    """The service's probabilities, compared with users' feedback; see `FeedbackSummary`."""

    n: _Count
    probability: float
    share: float


class DrawnReview(_Strict):
    """The review of a match that was drawn at random; see `MatchDraw`."""

    wrong: bool
    predicted: Annotated[float, Field(ge=0, le=1)]
    probability: Annotated[float, Field(gt=0, le=1)]
    least: Annotated[float, Field(gt=0, le=1)]
    n_before: _Count
    predicted_before: Annotated[float, Field(ge=0)]
    squares_before: Annotated[float, Field(ge=0)]

    @classmethod
    def of(cls, review: MatchReview) -> DrawnReview:
        """Convert a review for the certificate."""
        return cls(wrong=review.wrong, **asdict(review.draw))

    def read(self) -> MatchReview:
        """Convert back to a review."""
        return MatchReview(self.wrong, MatchDraw(**self.model_dump(exclude={"wrong"})))


class Drift(_Strict):
    """The drift test over all queries, as last saved by the service.

    Attributes
    ----------
    n_served : number of queries in the current period of the drift test.
    log_capital : evidence that these queries differ from the calibration queries, in nats.
    alarmed : whether drift is currently reported.
    """

    n_served: _Count
    log_capital: float
    alarmed: bool


class Observed(_Strict):
    """Records of a service, from which the section ``since`` is computed.

    Attributes
    ----------
    n_asked : number of matches drawn at random for review.
    reviews : the reviewed matches, oldest first.
    said : summary of the feedback; None without feedback.
    drift : state of the drift test; None if none was saved.
    """

    n_asked: _Count
    reviews: list[DrawnReview]
    said: ServedProbabilities | None
    drift: Drift | None


def observed(feedback: Path, bundle_id: str, calibration: Calibration) -> Observed:
    """Read the records of a bundle from the service's ``feedback`` file.

    Raises
    ------
    CertificateError : the file does not exist, or is not a feedback file.
    """
    if not feedback.is_file():
        raise CertificateError(
            f"The feedback file {feedback} does not exist. Name the file of the service's setting "
            "VOUCH_FEEDBACK, or certify without --feedback."
        )
    log = FeedbackLog(feedback)
    try:
        reviews, said = log.reviews(bundle_id), log.summary(bundle_id)
        saved = {one.caller: one.test for one in DriftStates(feedback).load(bundle_id)}
    except (WriteError, sqlite3.Error) as error:
        why = error.__cause__ or error
        raise CertificateError(f"{feedback} is not a feedback file ({why}).") from error
    drift = None
    test = DriftTest.of(calibration)
    if ALL_CALLERS in saved and test is not None:
        test.restore(saved[ALL_CALLERS])
        drift = Drift(n_served=test.n_served, log_capital=test.log_capital, alarmed=test.drifted)
    return Observed(
        n_asked=reviews.n_asked,
        reviews=[DrawnReview.of(one) for one in reviews.matches],
        said=None
        if said is None
        else ServedProbabilities(n=said.n, probability=said.probability, share=said.share),
        drift=drift,
    )


def since(seen: Observed, max_error: float) -> dict[str, Any]:
    """Return the records, and the results of a sequential test of the matches' error."""
    test = ErrorTest(max_error)
    reviews = [one.read() for one in seen.reviews]
    n, estimate = len(reviews), estimate_error(reviews)
    recorded = {round(step * n / N_STEPS) for step in range(1, N_STEPS + 1)}
    course = []
    for review in reviews:
        test.observe(review)
        if test.n in recorded:
            course.append({"n": test.n, "n_wrong": test.n_wrong, "log_evidence": test.log_evidence})
    return {
        "observed": seen.model_dump(mode="json"),
        "errors": {
            "max_error": max_error,
            "n": n,
            "n_wrong": test.n_wrong,
            "rate": estimate.rate,
            "interval": list(estimate.interval),
            "log_evidence": test.log_evidence,
            "alarmed": test.alarmed,
            "course": course,
        },
    }


ABSENCE: dict[Absence, str] = {
    "absent_labels": "Absent calibration queries are images of labels that are not in the gallery "
    "and were not used in any fit.",
    "hidden_labels": "Absent calibration queries are queries whose own label is hidden from the "
    "results and from the outlier detector. Hidden labels simulate truly absent labels.",
    "hidden_trained_labels": "Absent calibration queries are queries whose own label is hidden "
    "from the results and from the outlier detector. But the encoder was trained on this label, so "
    "such queries do not represent queries of truly absent labels well.",
    "near_misses_of_views": "Absent calibration queries are gallery items. An item and its copies "
    "are hidden from the results of the item. Such queries simulate photographs of absent "
    "objects, but real photographs may be harder to reject.",
}
"""Explanation of each kind of absent calibration query."""

QUERIES = {
    "held_out_images": "Queries are images that were held out of the gallery.",
    "left_out_items": "Queries are items of the gallery, each compared with the other items.",
    "views_of_items": "Queries are augmented views of gallery items, because there are no labels. "
    "Photographs by users may be harder to recognise.",
}
"""Explanation of each kind of calibration query with a match."""


def population(calibration: Calibration) -> dict[str, Any]:
    """Describe the calibration queries and count them by kind."""
    evidence, stream = calibration.evidence, calibration.promises().stream
    kind, within = calibration.report.get("queries"), calibration.within
    by_label = {
        "present_by_label_size": _by_size(
            evidence.true_classes[~evidence.absent].astype(np.int64), len(SIZE_CLASSES)
        ),
        "labels": {
            "n": int(calibration.n_labels.sum()),
            "by_size": dict(zip(SIZE_CLASSES, calibration.n_labels.tolist(), strict=True)),
        },
    }
    return {
        **(by_label if within is None else {"within": within}),
        "queries": kind,
        "queries_in_words": QUERIES.get(str(kind), "The kind of the queries is not known."),
        "absence": evidence.absence,
        "absence_in_words": ABSENCE[evidence.absence] if within is None else _of_places(within),
        "n_queries": len(evidence),
        "n_left_out_of_the_gallery": int(calibration.report.get("n_leave_one_out", 0)),
        "present": _kind(~evidence.absent, stream.n_objects),
        "absent": _kind(evidence.absent, stream.n_labels),
        "sources": [
            {"name": name, "n": int((evidence.sources == place).sum())}
            for place, name in enumerate(evidence.source_names)
            if name
        ],
        "absent_share": {
            "assumed": calibration.assumed_absent,
            "expected": calibration.expected_absent,
            "promised_for": calibration.default_share,
        },
        "n_feedback_pairs": calibration.feedback.n_pairs,
    }


def _of_places(within: float) -> str:
    return (
        f"A match is an item at most {within:g} m from the query; labels have no effect. Absent "
        "calibration queries are further away from every item."
    )


def _kind(rows: NDArray[np.bool_], n_independent: int) -> dict[str, Any]:
    """Return two counts: the queries in ``rows`` (n,), and the independent objects or labels."""
    return {"n": int(rows.sum()), "n_independent": n_independent}


def _by_size(classes: NDArray[np.int64], n_classes: int) -> dict[str, int]:
    counts = np.bincount(classes, minlength=n_classes).tolist()
    return dict(zip(SIZE_CLASSES, counts, strict=True))


COVERAGES = (0.8, 0.9, 0.95)
"""Coverages of result sets that a certificate lists in addition to the default coverage."""

OTHER_QUERIES = (
    "No promise holds for queries that differ from the calibration queries, or for another share "
    "of absent queries."
)


DIVIDED_PLACES = (
    "The error bound does not hold under a filter that excludes the most similar item of a place, "
    "but not all its items."
)


def promises(calibration: Calibration) -> list[dict[str, Any]]:
    """Return the guarantees for all sources together, and the guarantees for each source."""
    return [_of_source(calibration, source) for source in (None, *calibration.sources)]


def outlier_flag(calibration: Calibration) -> dict[str, Any]:
    """Return the requested false-alarm rate of the outlier flag, and the smallest possible rate."""
    n = len(calibration.outlier_scores)
    least = 1 / (n + 1)
    return {
        "alpha": calibration.alpha,
        "n_queries": n,
        "least_alpha": least,
        "can_flag": calibration.alpha >= least,
    }


def not_promised(calibration: Calibration) -> list[str]:
    """Return sentences that explain missing guarantees, without duplicates."""
    sentences = [
        (f"Queries from {source}: " if source else "") + sentence
        for source in (None, *calibration.sources)
        for sentence in _shortfalls(calibration, calibration.promises(source=source))
    ]
    flag = outlier_flag(calibration)
    if not flag["can_flag"]:
        n, alpha, least = flag["n_queries"], flag["alpha"], flag["least_alpha"]
        sentences.append(
            f"No query can be flagged as an outlier at a false-alarm rate of {alpha:g}: with {n} "
            f"calibration queries, the lowest rate is {least:.3g}."
        )
    if calibration.max_false_match_rate is None:
        sentences.append("No limit on matches among absent queries (FPIR) was requested.")
    absence, kind = calibration.evidence.absence, str(calibration.report.get("queries"))
    if absence != "absent_labels":
        sentences.append(ABSENCE[absence])
    if kind == "views_of_items":
        sentences.append(QUERIES[kind])
    sentences.append(message("coverage_not_under_filter"))
    if calibration.within is not None:
        sentences.append(DIVIDED_PLACES)
    return list(dict.fromkeys([*sentences, OTHER_QUERIES]))


def _of_source(calibration: Calibration, source: str | None) -> dict[str, Any]:
    promised = calibration.promises(source=source)
    return {
        "source": source,
        "absent_share": promised.expected,
        "order": calibration.order,
        "max_error": calibration.max_error,
        "max_false_match_rate": calibration.max_false_match_rate,
        "gives_matches": promised.gives_matches,
        "guarantee_share": calibration.report.get("guarantee_share") if source is None else None,
        "matches": [_match(one) for one in _held(calibration, promised)],
        "all_sizes": _point(promised.point) if promised.gives_matches else None,
        "unknown_absence": promised.unknown_absence,
        "result_sets": [
            {
                "coverage": coverage,
                "promised_for": list(promised.sets.promised_for(coverage)),
                "shortfall": promised.sets.shortfall(coverage),
            }
            for coverage in _coverages(calibration)
        ],
    }


def _coverages(calibration: Calibration) -> list[float]:
    return sorted({calibration.coverage, *COVERAGES})


def _held(calibration: Calibration, promised: Promises) -> list[MatchThreshold]:
    """Return the guarantees of the size classes that occur in the gallery."""
    held = zip(promised.matches, calibration.n_labels.tolist(), strict=True)
    return [promise for promise, n_labels in held if n_labels]


def _match(promise: MatchThreshold) -> dict[str, Any]:
    return {
        "size_class": promise.size_class,
        "threshold": promise.threshold if math.isfinite(promise.threshold) else None,
        "foretold": None if promise.point is None else _point(promise.point),
        "guaranteed": promise.point is not None and promise.guaranteed,
        "shortfall": promise.shortfall,
    }


def _point(point: OperatingPoint) -> dict[str, Any]:
    return point.model_dump(exclude={"threshold"})  # reported separately


def _shortfalls(calibration: Calibration, promised: Promises) -> list[str]:
    """Return the reasons why guarantees of matches or result sets are missing."""
    missing: list[str | None] = [promise.shortfall for promise in _held(calibration, promised)]
    if promised.unknown_absence is not None:
        missing.append(
            "No FPIR is estimated, and probabilities may be far off if the share of absent queries "
            f"exceeds {MOST_UNKNOWN:g}: {promised.unknown_absence}."
        )
    elif promised.unknown_rate is not None:
        missing.append(
            f"Probabilities may be far off if the share of absent queries exceeds "
            f"{MOST_UNKNOWN:g}: {promised.unknown_rate}."
        )
    missing += [promised.sets.shortfall(coverage) for coverage in _coverages(calibration)]
    return [sentence for sentence in missing if sentence]


SCHEMA_VERSION = 2

CERTIFIED_FILES = (CALIBRATION_FILE, ARRAYS_FILE, EVALUATION_FILE)
"""The files of a bundle from which the numbers of the certificate are computed."""


@dataclass(frozen=True, slots=True)
class CertifiedBundle:
    """A verified bundle and its calibration."""

    manifest: Manifest
    calibration: Calibration


def open_certified(path: Path) -> CertifiedBundle:
    """Open the bundle at ``path``, or the current bundle of a directory of bundles.

    The function checks every byte against the manifest, but opens neither the encoder nor the
    gallery.

    Raises
    ------
    BundleError : there is no bundle, or its files do not match the manifest.
    CertificateError : the bundle is not calibrated, so it has no guarantees.
    """
    directory = locate(path)
    manifest = read_manifest(directory)
    calibration = Calibration.load(directory)
    if calibration is None:
        raise CertificateError(
            f"The bundle {manifest.id} is not calibrated, so it has no guarantees. Run "
            "`vouch-build calibrate`, or build it with `vouch-build index --calibrate`."
        )
    return CertifiedBundle(manifest, calibration)


def content(bundle: CertifiedBundle, day: date, seen: Observed | None) -> dict[str, Any]:
    """Return the statements of the certificate of ``bundle`` as a JSON object.

    Parameters
    ----------
    day : date of the certificate.
    seen : feedback records of the service; if None, the certificate has no feedback.
    """
    manifest, calibration = bundle.manifest, bundle.calibration
    return {
        "schema_version": SCHEMA_VERSION,
        "date": day.isoformat(),
        "bundle": {
            "id": manifest.id,
            "gallery": manifest.gallery.get("name"),
            "n_items": manifest.gallery.get("n_items"),
            "encoder_fingerprint": calibration.encoder_fingerprint,
            "search": dict(calibration.search),
            "sha256": {
                name: manifest.files[name]["sha256"]
                for name in CERTIFIED_FILES
                if name in manifest.files
            },
        },
        "valid_while": _valid_while(calibration),
        "population": population(calibration),
        "delta": calibration.delta,
        "promises": promises(calibration),
        "outlier_flag": outlier_flag(calibration),
        "not_promised": not_promised(calibration),
        "measured": {
            "cross_fitted": _cross_fitted(calibration),
            "evaluation": manifest.metrics,
        },
        "since": None if seen is None else since(seen, calibration.max_error),
    }


def _valid_while(calibration: Calibration) -> list[str]:
    """Return sentences on how long the guarantees hold."""
    share, n_items = calibration.default_share, int(calibration.search.get("n_items", 0))
    of_labels = calibration.within is None
    n_labels = int(calibration.n_labels.sum())
    gallery = (
        f"The promises are for {n_labels:,} labels. They hold under three conditions. "
        if of_labels
        else "The promises hold under two conditions. "
    ) + (
        "The number of added, replaced or removed items is at most "
        f"{TOLERATED_CHANGES:.0%} of the {n_items:,} calibrated items. "
        f"{'Each of these labels has an item. ' if of_labels else ''}"
        "The encoder and the search settings are unchanged."
    )
    drift = (
        "The promises do not hold for a caller while the service reports drift for this caller. "
        "The queries of this caller then differ from the calibration queries. A different share of "
        "absent queries alone does not explain the difference."
    )
    errors = (
        "The promises end when reviews of randomly drawn matches show that more than "
        f"{calibration.max_error:g} of the matches are wrong."
    )
    absent = (
        f"The promises assume a share of {share:g} absent queries. A request, an API key or the "
        "operator can set another share. The service then computes the promises for this share "
        "from the same calibration queries. Served queries do not change the share."
    )
    return [gallery, drift, errors, absent]


def _cross_fitted(calibration: Calibration) -> dict[str, Any]:
    """Measure the calibration of the cross-fitted probabilities.

    The measurement uses the assumed share π of absent queries, without correction by feedback. Each
    present query has weight 1; each absent query has weight π n_present / ((1 − π) n_absent).
    """
    evidence = calibration.evidence.of_order(calibration.order)
    absent, first = evidence.absent, evidence.first_probabilities
    n_absent, n_present = int(absent.sum()), int((~absent).sum())
    odds = calibration.assumed_absent / (1 - calibration.assumed_absent)
    weights = np.where(absent, odds * n_present / max(n_absent, 1), 1.0)
    bins = reliability(first, evidence.correct, weights=weights)
    of_nothing = evidence.no_match_probabilities
    wrong = ~evidence.correct & ~absent
    return {
        "absent_share": calibration.assumed_absent,
        "first_item_ece": calibration_error(bins),
        "first_item_correct_share_of_present": float(evidence.correct[~absent].mean()),
        "error_auroc_of_present": auroc(1 - first[wrong], 1 - first[evidence.correct]),
        "no_match_auroc": auroc(of_nothing[absent], of_nothing[~absent]),
        "reliability": [one.model_dump() for one in bins],
    }
