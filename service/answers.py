"""From the core's values to the service's JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from urllib.parse import quote

from model_store.decision import Assessment, OperatingPoint
from model_store.feedback import Feedback, FeedbackSummary
from model_store.gallery import Item
from model_store.predictive import Predictive
from model_store.quality import MEASURES
from model_store.retriever import Answer, Bundle, Match
from service import schemas
from service.engine import Assessed, Found, SearchEngine
from service.telemetry import Telemetry

OUTLIER_METHOD = "conformal_fused"


def search_answer(
    engine: SearchEngine, found: Found, request_id: str, on_uncertain: schemas.OnUncertain
) -> schemas.SearchAnswer:
    """The answer to one query."""
    bundle, answer = engine.bundle, found.answer
    decision = answer.decision
    refused = on_uncertain == "refuse" and decision.verdict != "match"
    shown = () if refused else answer.matches
    return schemas.SearchAnswer(
        request_id=request_id,
        gallery=bundle.name,
        verdict=decision.verdict,
        query=_query(bundle, found, answer.predictive, decision.assessment, answer.alpha),
        results=[_result(bundle.name, match) for match in shown],
        result_set=None if refused else _result_set(answer, engine.stale),
        bundle=bundle_state(engine),
        cache=found.cache,
        timing_ms={stage: round(1000 * seconds, 3) for stage, seconds in found.seconds.items()},
    )


def assessment_answer(
    engine: SearchEngine, assessed: Assessed, request_id: str
) -> schemas.AssessmentAnswer:
    """What is said of a picture before anything is searched."""
    bundle = engine.bundle
    measured = dict(zip(MEASURES, assessed.measures.tolist(), strict=True))
    return schemas.AssessmentAnswer(
        request_id=request_id,
        gallery=bundle.name,
        query=_query(bundle, assessed, assessed.predictive, assessed.assessment, assessed.alpha),
        quality=schemas.Quality(
            hints=[schemas.QualityHint(**asdict(hint)) for hint in assessed.hints],
            measures=measured,
        ),
        bundle=bundle_state(engine),
    )


def record(
    telemetry: Telemetry, engine: SearchEngine, answer: schemas.SearchAnswer, found: Found
) -> None:
    """Count what was answered."""
    telemetry.drift.labels(answer.gallery).set(engine.drift_log_capital)
    telemetry.stale.labels(answer.gallery).set(engine.stale is not None)
    telemetry.verdicts.labels(answer.gallery, answer.verdict).inc()
    telemetry.cache.labels(answer.cache).inc()
    for stage, seconds in found.seconds.items():
        telemetry.stage_seconds.labels(stage).observe(seconds)
    if answer.query.uncertainty.percentile is not None:
        percentile = answer.query.uncertainty.percentile
        telemetry.uncertainty_percentile.labels(answer.gallery).observe(percentile)
    if answer.query.ood.p_value is not None:
        telemetry.outlier_p_value.labels(answer.gallery).observe(answer.query.ood.p_value)


def gallery_list(engines: Iterable[SearchEngine]) -> schemas.GalleryList:
    """All galleries, by name."""
    bundles = sorted((engine.bundle for engine in engines), key=lambda bundle: bundle.name)
    return schemas.GalleryList(
        galleries=[
            schemas.GalleryName(
                name=bundle.name,
                n_items=bundle.retriever.gallery.n_items,
                bundle_id=bundle.manifest.id,
            )
            for bundle in bundles
        ]
    )


def gallery_detail(engine: SearchEngine) -> schemas.GalleryDetail:
    """One gallery."""
    bundle = engine.bundle
    manifest, encoder = bundle.manifest, bundle.retriever.encoder
    return schemas.GalleryDetail(
        name=bundle.name,
        description=str(manifest.gallery["description"]),
        n_items=bundle.retriever.gallery.n_items,
        labels=list(bundle.retriever.gallery.labels),
        bundle=bundle_state(engine),
        encoder=schemas.EncoderState(
            fingerprint=encoder.fingerprint,
            provider=encoder.provider,
            dim=encoder.dim,
            posterior=encoder.metadata.posterior,
        ),
        calibration=None if manifest.calibration is None else dict(manifest.calibration),
        metrics=None if manifest.metrics is None else dict(manifest.metrics),
        samples=[
            schemas.Sample(
                id=sample.id,
                caption=sample.caption,
                belongs=sample.belongs,
                image_url=f"/v1/galleries/{quote(bundle.name)}/samples/{quote(sample.id)}",
            )
            for sample in manifest.samples
        ],
    )


def calibration_report(
    engine: SearchEngine, said: FeedbackSummary | None
) -> schemas.CalibrationReport:
    """What the gallery's probabilities rest on."""
    calibration = engine.bundle.retriever.calibration
    state = bundle_state(engine).calibration
    if calibration is None:
        return schemas.CalibrationReport(
            status=state.status,
            n_queries=state.n_queries,
            queries=None,
            alpha=None,
            coverage=None,
            match_threshold=None,
            top1_ece=None,
            reliability=[],
            risk_coverage=[],
            result_sets=[],
            outlier_auroc={},
            feedback=None,
            correction=None,
        )
    measured = calibration.report["cross_fitted"]
    correction = calibration.report.get("feedback")
    return schemas.CalibrationReport(
        status=state.status,
        n_queries=state.n_queries,
        queries=calibration.report["queries"],
        alpha=calibration.alpha,
        coverage=calibration.coverage,
        match_threshold=calibration.match_threshold,
        top1_ece=measured["top1_ece"],
        reliability=[schemas.ReliabilityBin(**one) for one in measured["reliability"]],
        risk_coverage=[_operating_point(point) for point in calibration.operating.points()],
        result_sets=[schemas.ResultSetOutcome(**one) for one in measured["result_sets"]],
        outlier_auroc=measured["outlier_auroc"],
        feedback=None if said is None else schemas.FeedbackSummary(**asdict(said)),
        correction=None if correction is None else schemas.FeedbackCorrection(**correction),
    )


def operating_point(bundle: Bundle, max_error: float) -> schemas.OperatingPointAnswer:
    """The largest coverage within an error."""
    calibration = bundle.retriever.calibration
    point = None if calibration is None else calibration.operating.at(max_error)
    return schemas.OperatingPointAnswer(
        max_error=max_error, point=None if point is None else _operating_point(point)
    )


def feedback_answer(feedback: Feedback) -> schemas.FeedbackAnswer:
    """What was kept of a user's word."""
    return schemas.FeedbackAnswer(
        query_id=feedback.query_id,
        item_id=feedback.item_id,
        correct=feedback.correct,
        rank=feedback.rank,
        match_probability=feedback.match_probability,
    )


def item_detail(gallery: str, item: Item) -> schemas.ItemDetail:
    """One item."""
    return schemas.ItemDetail(
        id=item.id,
        label=item.label,
        metadata=dict(item.metadata),
        thumbnail_url=_thumbnail_url(gallery, item.id),
    )


def bundle_state(engine: SearchEngine) -> schemas.BundleState:
    """Which bundle answers, and whether its calibration holds."""
    bundle, stale = engine.bundle, engine.stale
    calibration = bundle.retriever.calibration
    status: schemas.CalibrationStatus = "valid" if stale is None else "stale"
    return schemas.BundleState(
        id=bundle.manifest.id,
        calibration=schemas.CalibrationState(
            status="missing" if calibration is None else status,
            n_queries=0 if calibration is None else calibration.n_queries,
            reason=stale,
        ),
    )


def _query(
    bundle: Bundle,
    upload: Found | Assessed,
    predictive: Predictive,
    assessment: Assessment,
    alpha: float,
) -> schemas.Query:
    return schemas.Query(
        id=upload.query_id,
        uncertainty=schemas.Uncertainty(
            value=predictive.spherical_variance,
            percentile=assessment.percentile,
            level=assessment.level,
            method=bundle.retriever.encoder.metadata.posterior,
        ),
        ood=schemas.OutOfDistribution(
            flag=assessment.is_alien(alpha),
            p_value=assessment.outlier_p_value,
            alpha=alpha,
            method=OUTLIER_METHOD,
        ),
        image=upload.image,
    )


def _result(gallery: str, match: Match) -> schemas.Result:
    return schemas.Result(
        rank=match.rank,
        id=match.item.id,
        similarity=match.similarity,
        match_probability=match.match_probability,
        match_probability_interval=match.match_interval,
        rank_stability=match.rank_stability,
        rank_confidence=match.rank_confidence,
        variance=match.variance,
        label=match.item.label,
        metadata=dict(match.item.metadata),
        thumbnail_url=_thumbnail_url(gallery, match.item.id),
    )


def _result_set(answer: Answer, stale: str | None) -> schemas.ResultSet | None:
    chosen = answer.decision.result_set
    if chosen is None:
        return None
    reason = chosen.shortfall or stale
    return schemas.ResultSet(
        items=[schemas.SetItem(id=item.id, label=item.label) for item in answer.result_set],
        coverage=chosen.coverage,
        promised=reason is None,
        reason=reason,
    )


def _operating_point(point: OperatingPoint) -> schemas.OperatingPoint:
    return schemas.OperatingPoint(**asdict(point))


def _thumbnail_url(gallery: str, item_id: str) -> str:
    return f"/v1/galleries/{quote(gallery)}/items/{quote(item_id)}/thumbnail"
