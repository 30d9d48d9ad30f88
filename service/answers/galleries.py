"""Galleries, and what their probabilities rest on."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict
from urllib.parse import quote

from model_store.decision import OperatingPoint
from model_store.feedback import FeedbackSummary
from model_store.retriever import Bundle
from service import schemas
from service.answers.bundles import bundle_state, encoder_state
from service.engine import SearchEngine

N_LABELS = 12
"""Labels that a gallery is described with: there may be hundreds of thousands."""


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
    manifest, labels = bundle.manifest, bundle.retriever.gallery.labels
    return schemas.GalleryDetail(
        name=bundle.name,
        description=str(manifest.gallery["description"]),
        n_items=bundle.retriever.gallery.n_items,
        n_labels=len(labels),
        labels=heapq.nsmallest(N_LABELS, labels),
        bundle=bundle_state(engine),
        encoder=encoder_state(bundle),
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


def label_list(engine: SearchEngine, after: str | None, limit: int) -> schemas.LabelList:
    """Return at most ``limit`` labels by name, from the one after ``after`` on."""
    bundle = engine.bundle
    labels = sorted(bundle.retriever.gallery.labels)
    start = 0 if after is None else bisect_right(labels, after)
    shown = labels[start : start + limit]
    return schemas.LabelList(
        gallery=bundle.name,
        bundle_id=bundle.manifest.id,
        n_labels=len(labels),
        labels=shown,
        next_after=shown[-1] if start + limit < len(labels) else None,
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
    correction = calibration.report.get("feedback")
    measured = calibration.report["cross_fitted"]
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


def _operating_point(point: OperatingPoint) -> schemas.OperatingPoint:
    return schemas.OperatingPoint(**asdict(point))
