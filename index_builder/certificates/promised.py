"""The guarantees of a calibration, and a list of missing guarantees."""

from __future__ import annotations

import math
from typing import Any

from index_builder.certificates.population import ABSENCE, QUERIES
from model_store.decision import Calibration, MatchThreshold, Promises
from model_store.decision.promises import MOST_UNKNOWN
from model_store.messages import message
from model_store.records import OperatingPoint

COVERAGES = (0.8, 0.9, 0.95)
"""Coverages of result sets that a certificate lists in addition to the default coverage."""

OTHER_QUERIES = (
    "No promise holds for queries that differ from the calibration queries, or for another share "
    "of absent queries."
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
    return list(dict.fromkeys([*sentences, message("coverage_not_under_filter"), OTHER_QUERIES]))


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
