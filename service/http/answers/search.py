"""Answers to queries: searches, similar items, assessments and embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

from model_store.answers import Answer
from model_store.bundles.bundle import Bundle
from model_store.decision import Assessment, Decision, ResultSet
from model_store.images.quality import MEASURES
from model_store.matches import Match
from service import schemas
from service.http.answers.bundles import bundle_state, encoder_state
from service.http.answers.items import item_detail, preview_url, thumbnail_url
from service.http.cursors import SearchCursor, write
from service.observability.metrics import Telemetry, counted_as
from service.observability.records import SearchRecord, current_record
from service.serving.lease import Lease
from service.serving.queries import Assessed, DecidedList, Embedded, SearchResult, SimilarItems

OUTLIER_METHOD = "conformal_fused"

_LEAST_PLANNED = 1e-9
"""Alpha below which the number of queries that it needs is not spelt out."""

NOT_OF_ITEMS = (
    "Probabilities are calibrated for queries that are not in the gallery, and of an item its "
    "outlier score is not known."
)


def search_answer(
    lease: Lease,
    found: SearchResult,
    request_id: str,
    options: schemas.SearchOptions,
    skipped: int = 0,
) -> schemas.SearchAnswer:
    """The answer to one query.

    Parameters
    ----------
    options : what was asked for.
    skipped : how many results stood on earlier pages.
    """
    lease = lease.for_kind(found.answer.predictive.kind)
    bundle, answer, state = lease.bundle, found.answer, bundle_state(lease)
    decision = answer.decision
    refused = options.on_uncertain == "refuse" and decision.verdict != "match"
    shown = () if refused else answer.matches[skipped:]
    shown = tuple(match for match in shown if match.item.id not in found.gone)
    end = len(answer.matches)
    more = not refused and end < answer.n_listed
    cursor = (
        SearchCursor(
            bundle=bundle.manifest.id,
            version=bundle.version,
            query_id=found.query_id,
            start=end,
            options=options.model_copy(
                update={"expected_absent": decision.absent_share, "order": answer.order}
            ),
            share_origin=found.share_origin,
        )
        if more
        else None
    )
    return schemas.SearchAnswer(
        request_id=request_id,
        gallery=bundle.name,
        verdict=decision.verdict,
        reason=decision.reason or _not_yet_calibrated(lease),
        guaranteed=decision.guaranteed,
        roll_up=roll_up(decision),
        no_match_probability=decision.no_match_probability,
        absent=absent_share(lease, decision, found.share_origin),
        query=query(bundle, found, decision.assessment, answer.alpha),
        order=answer.order,
        results=[_result(bundle, match) for match in shown],
        explain=_explanation(answer),
        result_set=None if refused else _result_set(answer, found.gone),
        next_cursor=None if cursor is None else write(cursor, lease.engine.secret),
        audit=found.audit and not skipped,
        bundle=state,
        cache=found.cache,
        timing_ms=milliseconds(found.seconds),
    )


def _explanation(answer: Answer) -> schemas.Explanation | None:
    explain = answer.explain
    if explain is None:
        return None
    return schemas.Explanation(
        plan=explain.plan, estimated_share=explain.share, indexes=dict(explain.indexes)
    )


def similar_answer(lease: Lease, similar: SimilarItems, request_id: str) -> schemas.SimilarAnswer:
    """Describe the items that are similar to an item."""
    bundle, answer = lease.bundle, similar.answer
    decision = answer.decision
    return schemas.SimilarAnswer(
        request_id=request_id,
        gallery=bundle.name,
        item=item_detail(bundle, similar.item),
        verdict=decision.verdict,
        reason=NOT_OF_ITEMS,
        uncertainty=_uncertainty(bundle, decision.assessment),
        results=[_result(bundle, match) for match in answer.matches],
        explain=_explanation(answer),
        bundle=bundle_state(lease),
        timing_ms=milliseconds(similar.seconds),
    )


def assessment_answer(
    lease: Lease, assessed: Assessed, request_id: str
) -> schemas.AssessmentAnswer:
    """Describe an image that was encoded and not searched with."""
    bundle = lease.bundle
    measured = dict(zip(MEASURES, assessed.measures.tolist(), strict=True))
    return schemas.AssessmentAnswer(
        request_id=request_id,
        gallery=bundle.name,
        query=query(bundle, assessed, assessed.assessment, assessed.alpha),
        quality=schemas.Quality(
            hints=[schemas.QualityHint(**asdict(hint)) for hint in assessed.hints],
            measures=measured,
        ),
        bundle=bundle_state(lease),
    )


def _not_yet_calibrated(lease: Lease) -> str | None:
    """Say of a created gallery why it gives no probabilities, and what to do."""
    entry = lease.bundle.entry
    if entry is None or lease.bundle.retriever.calibration is not None:
        return None
    return (
        f"Nothing is calibrated in this gallery of {lease.bundle.retriever.gallery.n_items} items "
        "yet: no probability is known, and nothing is called a match. Once it holds its items, its "
        "operator calibrates it with queries whose truth is known: `vouch-build calibrate "
        f"{entry.id} --queries FILE --gallery FILE`, in the directory of galleries."
    )


def record(
    telemetry: Telemetry, lease: Lease, answer: schemas.SearchAnswer, found: SearchResult
) -> None:
    """Count what was answered, and note it for the log and the trace of the request."""
    gallery = counted_as(lease.bundle)
    query = answer.query
    search = SearchRecord(
        verdict=answer.verdict,
        cache=answer.cache,
        uncertainty_percentile=query.uncertainty.percentile,
        outlier_p_value=query.ood.p_value,
        is_outlier=bool(query.ood.flag),
        seconds=found.seconds,
        ended_ns=found.at_ns,
    )
    telemetry.search(gallery, search)
    if answer.audit:
        telemetry.audits.labels(gallery).inc()
    request = current_record()
    if request is not None:
        request.searches.append(search)


def query(
    bundle: Bundle,
    upload: SearchResult | Assessed | Embedded | DecidedList,
    assessment: Assessment,
    alpha: float,
) -> schemas.Query:
    """The query, before any neighbour is looked at."""
    return schemas.Query(
        id=upload.query_id,
        uncertainty=_uncertainty(bundle, assessment),
        ood=schemas.OutOfDistribution(
            flag=assessment.is_outlier(alpha),
            p_value=assessment.outlier_p_value,
            reason=_why_none_is_flagged(assessment, alpha),
            alpha=alpha,
            method=OUTLIER_METHOD,
        ),
        image=upload.image,
        text=upload.text if isinstance(upload, SearchResult) else None,
    )


def _why_none_is_flagged(assessment: Assessment, alpha: float) -> str | None:
    least = assessment.least_alpha
    if least is None or alpha >= least:
        return None
    # The reciprocal of the smallest numbers is infinite.
    needed = math.ceil(1 / alpha) - 1 if alpha > _LEAST_PLANNED else "more than a billion"
    return (
        f"With {round(1 / least) - 1} calibration queries no p-value is below {least:.4g}: at "
        f"alpha = {alpha:g} no query can be flagged. It needs {needed} queries."
    )


def _uncertainty(bundle: Bundle, assessment: Assessment) -> schemas.Uncertainty:
    return schemas.Uncertainty(
        value=assessment.uncertainty,
        percentile=assessment.percentile,
        level=assessment.level,
        aleatoric=_picture_state(assessment),
        method=bundle.retriever.posterior,
    )


def _picture_state(assessment: Assessment) -> schemas.PictureState | None:
    value, percentile = assessment.displacement, assessment.displacement_percentile
    if value is None or percentile is None:
        return None
    return schemas.PictureState(value=value, percentile=percentile)


def _result(bundle: Bundle, match: Match) -> schemas.Result:
    return schemas.Result(
        rank=match.rank,
        id=match.item.id,
        similarity=match.similarity,
        similarity_std=match.similarity_std,
        match_probability=match.match_probability,
        match_probability_interval=match.match_interval,
        rank_stability=match.rank_stability,
        rank_confidence=match.rank_confidence,
        variance=match.variance,
        label=match.item.label,
        metadata=dict(match.item.metadata),
        thumbnail_url=thumbnail_url(bundle, match.item.id),
        preview_url=preview_url(bundle, match.item.id),
    )


def _result_set(answer: Answer, gone: frozenset[str]) -> schemas.ResultSet | None:
    chosen = answer.decision.result_set
    if chosen is None:
        return None
    items = [(item.id, item.label) for item in answer.result_set if item.id not in gone]
    return result_set(chosen, items)


def result_set(chosen: ResultSet, items: Sequence[tuple[str, str | None]]) -> schemas.ResultSet:
    """Describe a result set by the ids and labels of its items."""
    return schemas.ResultSet(
        items=[schemas.SetItem(id=name, label=label) for name, label in items],
        coverage=chosen.coverage,
        promised=chosen.shortfall is None,
        promised_for=list(chosen.promised_for),
        reason=chosen.shortfall,
    )


def roll_up(decision: Decision) -> schemas.RollUp | None:
    """Describe what an ambiguous query is all the same; None where that is not known."""
    return None if decision.roll_up is None else schemas.RollUp(**asdict(decision.roll_up))


def absent_share(
    lease: Lease, decision: Decision, origin: schemas.ShareOrigin
) -> schemas.AbsentShare | None:
    """Describe the share of absent queries of a decision; None without calibration."""
    calibration = lease.bundle.retriever.calibration
    if calibration is None or decision.absent_share is None:
        return None
    return schemas.AbsentShare(
        share=decision.absent_share,
        origin=origin,
        adopted_at=lease.engine.operator.adopted_at if origin == "adopted" else None,
        basis=calibration.evidence.absence,
    )


def milliseconds(seconds: dict[str, float]) -> dict[str, float]:
    """Return the times of stages in milliseconds."""
    return {stage: round(1000 * spent, 3) for stage, spent in seconds.items()}


def embedding_answer(lease: Lease, embedded: Embedded, request_id: str) -> schemas.EmbeddingAnswer:
    """One image's embedding."""
    bundle, predictive = lease.bundle, embedded.predictive
    score = predictive.outlier_score
    return schemas.EmbeddingAnswer(
        request_id=request_id,
        gallery=bundle.name,
        query=query(bundle, embedded, embedded.assessment, embedded.alpha),
        direction=predictive.direction.tolist(),
        variance=predictive.variance.tolist(),
        concentration=predictive.concentration,
        spherical_variance=predictive.spherical_variance,
        outlier_score=None if math.isnan(score) else score,
        encoder=encoder_state(bundle),
        bundle=bundle_state(lease),
    )
