"""Answers to queries: searches, similar items, assessments and embeddings."""

from __future__ import annotations

import math

from model_store.bundles.bundle import Bundle
from model_store.decision import Assessment, Decision
from model_store.images.quality import MEASURES
from model_store.messages import Message, message
from service import schemas, serializers
from service.http.answers.bundles import bundle_state, encoder_state
from service.http.answers.items import item_detail, picture_urls
from service.http.cursors import SearchCursor, write
from service.observability.metrics import Telemetry, counted_as
from service.observability.records import SearchRecord, current_record
from service.serving.lease import Lease
from service.serving.queries import Assessed, DecidedList, Embedded, SearchResult, SimilarItems


def search_answer(
    lease: Lease,
    found: SearchResult,
    request_id: str,
    options: schemas.SearchFields,
    skipped: int = 0,
) -> schemas.SearchAnswer:
    """Return the answer to one query.

    Parameters
    ----------
    options : the options of the search request.
    skipped : number of results on earlier pages.
    """
    lease = lease.for_kind(found.answer.predictive.kind)
    bundle, answer = lease.bundle, found.answer
    decision = answer.decision
    end = len(answer.matches)
    refused = serializers.is_refused(answer, options.on_uncertain)
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
    return serializers.search_answer(
        answer,
        query(bundle, found, decision.assessment, answer.alpha),
        bundle_state(lease),
        gallery=bundle.name,
        request_id=request_id,
        reason=_not_yet_calibrated(lease),
        absent=absent_share(lease, decision, found.share_origin),
        on_uncertain=options.on_uncertain,
        urls=picture_urls(bundle),
        timing_ms=serializers.milliseconds(found.seconds),
        cache=found.cache,
        skipped=skipped,
        gone=found.gone,
        next_cursor=None if cursor is None else write(cursor, lease.engine.secret),
        audit=found.audit and not skipped,
    )


def similar_answer(lease: Lease, similar: SimilarItems, request_id: str) -> schemas.SimilarAnswer:
    """Describe the items that are similar to an item of the gallery."""
    bundle, answer = lease.bundle, similar.answer
    decision = answer.decision
    urls = picture_urls(bundle)
    return schemas.SimilarAnswer(
        request_id=request_id,
        gallery=bundle.name,
        item=item_detail(similar.item, urls),
        verdict=decision.verdict,
        reason=message("items_have_no_probability"),
        uncertainty=serializers.uncertainty(decision.assessment, bundle.retriever.posterior),
        results=[serializers.result(match, urls) for match in answer.matches],
        explain=answer.explain,
        bundle=bundle_state(lease),
        timing_ms=serializers.milliseconds(similar.seconds),
    )


def assessment_answer(
    lease: Lease, assessed: Assessed, request_id: str
) -> schemas.AssessmentAnswer:
    """Describe the assessment of an image: quality, uncertainty and outlier test."""
    bundle = lease.bundle
    measured = dict(zip(MEASURES, assessed.measures.tolist(), strict=True))
    return schemas.AssessmentAnswer(
        request_id=request_id,
        gallery=bundle.name,
        query=query(bundle, assessed, assessed.assessment, assessed.alpha),
        quality=schemas.Quality(hints=assessed.hints, measures=measured),
        bundle=bundle_state(lease),
    )


def _not_yet_calibrated(lease: Lease) -> Message | None:
    """Return the reason of `not_calibrated` for a gallery created over HTTP, and the remedy."""
    entry = lease.bundle.entry
    if entry is None or lease.bundle.retriever.calibration is not None:
        return None
    n_items = lease.bundle.retriever.gallery.n_items
    return message("gallery_not_calibrated", n_items=n_items, gallery=entry.id)


def record(
    telemetry: Telemetry, lease: Lease, answer: schemas.SearchAnswer, found: SearchResult
) -> None:
    """Count an answer in the metrics, and add it to the log line and trace of the request."""
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
    """Describe a query: its uncertainty, its outlier test and its image or text."""
    text = upload.text if isinstance(upload, SearchResult) else None
    posterior = bundle.retriever.posterior
    return serializers.query(upload.query_id, assessment, alpha, posterior, upload.image, text)


def absent_share(
    lease: Lease, decision: Decision, origin: schemas.ShareOrigin
) -> schemas.AbsentShare | None:
    """Describe the share of absent queries that a decision used; None without calibration."""
    calibration, adopted_at = lease.bundle.retriever.calibration, lease.engine.operator.adopted_at
    return serializers.absent_share(calibration, decision, origin, adopted_at)


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
