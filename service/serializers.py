"""Converts the core's answers to the records of `service.schemas`; needs no web framework.

The service sends these records as JSON. `vouch_search` returns the same records for a local
gallery. Local answers and answers of the service therefore have the same field names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from model_store.answers import Answer
from model_store.decision import Assessment, Calibration, Decision, ResultSetChoice
from model_store.messages import Message, message
from model_store.predictive import is_over_weights
from model_store.records import Match
from model_store.retriever import Retriever
from service import schemas

PictureUrls = Callable[[str], tuple[str | None, str | None]]
"""Maps an item's id to the URLs of its thumbnail and its preview; None without a picture."""

OUTLIER_METHOD = "conformal"

_LEAST_PLANNED = 1e-9
"""If alpha is at most this value, a message states that more than a billion queries are needed."""


def search_answer(
    answer: Answer,
    retriever: Retriever,
    bundle: schemas.BundleState,
    *,
    gallery: str,
    request_id: str,
    query_id: str,
    image: schemas.QueryImage | None,
    text: schemas.QueryText | None,
    share_origin: schemas.ShareOrigin,
    adopted_at: str | None,
    urls: PictureUrls,
    seconds: dict[str, float],
    refused: bool,
    reason: str | None = None,
    cache: schemas.CacheOutcome = "miss",
    skipped: int = 0,
    gone: Collection[str] = (),
    next_cursor: str | None = None,
    audit: bool = False,
) -> schemas.SearchAnswer:
    """Return the record of a search answer.

    Parameters
    ----------
    retriever : retriever for queries of this kind.
    query_id, image, text : see `query`.
    share_origin, adopted_at : see `absent_share`.
    seconds : duration of each stage.
    refused : see `is_refused`.
    reason : used as the answer's reason if the decision has no reason.
    skipped : number of results on earlier pages.
    gone : ids of items that were deleted, replaced or edited after the search.
    """
    decision = answer.decision
    shown = () if refused else answer.matches[skipped:]
    chosen = None if refused else decision.result_set
    members = [(item.id, item.label) for item in answer.result_set if item.id not in gone]
    # Here and below, parts are validated with the whole, in half the time of one by one.
    return schemas.SearchAnswer.model_validate(
        {
            "request_id": request_id,
            "gallery": gallery,
            "verdict": decision.verdict,
            "reason": decision.reason or reason,
            "guaranteed": decision.guaranteed,
            "roll_up": decision.roll_up,
            "no_match_probability": decision.no_match_probability,
            "absent": absent_share(retriever.calibration, decision, share_origin, adopted_at),
            "query": query(
                query_id, decision.assessment, answer.alpha, retriever.posterior, image, text
            ),
            "order": answer.order,
            "results": [_fields_of(match, urls) for match in shown if match.id not in gone],
            "explain": answer.explain,
            "result_set": None if chosen is None else result_set(chosen, members),
            "next_cursor": next_cursor,
            "audit": audit,
            "bundle": bundle,
            "cache": cache,
            "timing_ms": milliseconds(seconds),
        }
    )


def is_refused(answer: Answer, on_uncertain: schemas.OnUncertain) -> bool:
    """True if the verdict is not ``match``, and the client requests results only for ``match``."""
    return on_uncertain == "refuse" and answer.decision.verdict != "match"


def query(
    query_id: str,
    assessment: Assessment,
    alpha: float,
    posterior: str,
    image: schemas.QueryImage | None,
    text: schemas.QueryText | None = None,
) -> schemas.Query:
    """Describe a query: its uncertainty, its outlier test and its image or text."""
    least = assessment.least_alpha
    outlier = {
        "flag": assessment.is_outlier(alpha),
        "p_value": assessment.outlier_p_value,
        "reason": None if least is None or alpha >= least else _why_none_is_flagged(least, alpha),
        "alpha": alpha,
        "method": OUTLIER_METHOD,
    }
    of_query = uncertainty(assessment, posterior)
    return schemas.Query.model_validate(
        {"id": query_id, "uncertainty": of_query, "ood": outlier, "image": image, "text": text}
    )


def _why_none_is_flagged(least: float, alpha: float) -> Message:
    # The reciprocal of a tiny alpha is infinite.
    needed = math.ceil(1 / alpha) - 1 if alpha > _LEAST_PLANNED else "more than a billion"
    return message(
        "alpha_too_small",
        n_queries=round(1 / least) - 1,
        least=float(f"{least:.4g}"),
        alpha=alpha,
        n_needed=needed,
    )


def uncertainty(assessment: Assessment, posterior: str) -> schemas.Uncertainty:
    """Describe the uncertainty of a query; ``posterior`` names the origin of its variance."""
    value, percentile = assessment.displacement, assessment.displacement_percentile
    unknown = value is None or percentile is None
    of_picture = None if unknown else {"value": value, "percentile": percentile}
    return schemas.Uncertainty.model_validate(
        {
            "value": assessment.uncertainty,
            "percentile": assessment.percentile,
            "level": assessment.level,
            "epistemic": assessment.uncertainty if is_over_weights(posterior) else None,
            "aleatoric": of_picture,
            "method": posterior,
        }
    )


def result(match: Match, urls: PictureUrls) -> schemas.Result:
    """Describe one result."""
    return schemas.Result(**_fields_of(match, urls))


def _fields_of(match: Match, urls: PictureUrls) -> dict[str, Any]:
    thumbnail_url, preview_url = urls(match.id)
    return {**vars(match), "thumbnail_url": thumbnail_url, "preview_url": preview_url}


def result_set(
    chosen: ResultSetChoice, items: Sequence[tuple[str, str | None]]
) -> schemas.ResultSet:
    """Describe a result set by the ids and labels of its items."""
    return schemas.ResultSet.model_validate(
        {
            "items": [{"id": name, "label": label} for name, label in items],
            "coverage": chosen.coverage,
            "promised": chosen.shortfall is None,
            "promised_for": list(chosen.promised_for),
            "reason": chosen.shortfall,
        }
    )


def absent_share(
    calibration: Calibration | None,
    decision: Decision,
    origin: schemas.ShareOrigin,
    adopted_at: str | None,
) -> schemas.AbsentShare | None:
    """Describe the share of absent queries that a decision used; None without calibration.

    Parameters
    ----------
    adopted_at : time when the gallery's operator adopted a share.
    """
    if calibration is None or decision.absent_share is None:
        return None
    return schemas.AbsentShare(
        share=decision.absent_share,
        origin=origin,
        adopted_at=adopted_at if origin == "adopted" else None,
        basis=calibration.evidence.absence,
    )


def bundle_state(
    bundle_id: str, calibration: Calibration | None, stale: str | None, drift: str | None = None
) -> schemas.BundleState:
    """Describe the bundle, and the status of its calibration."""
    status: schemas.CalibrationStatus = "valid" if drift is None else "drifting"
    if stale is not None:
        status = "stale"
    of_calibration = {
        "status": "missing" if calibration is None else status,
        "n_queries": 0 if calibration is None else calibration.n_matched,
        "reason": stale or drift,
    }
    return schemas.BundleState.model_validate({"id": bundle_id, "calibration": of_calibration})


def milliseconds(seconds: dict[str, float]) -> dict[str, float]:
    """Return the times of stages in milliseconds."""
    return {stage: round(1000 * spent, 3) for stage, spent in seconds.items()}
