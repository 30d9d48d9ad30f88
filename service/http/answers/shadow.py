"""Answers about the shadow bundle."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from model_store.bundles.bundle import Bundle
from model_store.compared_answers import CONFIDENCE, ComparedAnswers, Said
from model_store.decision.operating import exact_interval
from model_store.feedback import Case
from service import schemas
from service.http.answers.review import image_url
from service.serving.shadow import Shadow


def shadow_report(
    bundle: Bundle, shadow: Shadow, cases: Mapping[str, Case], *, persisted: bool
) -> schemas.ShadowReport:
    """Describe the comparison of a shadow bundle's answers with the served answers.

    Parameters
    ----------
    cases : review cases of queries with changed answers, by query id.
    """
    counted = shadow.compared
    recent = list(shadow.recent)[::-1]
    return schemas.ShadowReport(
        gallery=bundle.name,
        state="running" if shadow.ended is None else "ended",
        reason=shadow.ended,
        bundle_id=shadow.terms.bundle_id,
        live_bundle_id=shadow.live_id,
        share=shadow.terms.share,
        persisted=persisted,
        since=_moment(shadow.since),
        ended_at=None if shadow.ended_at is None else _moment(shadow.ended_at),
        n_compared=counted.n,
        n_waiting=shadow.n_waiting,
        n_dropped=shadow.n["dropped"],
        n_failed=shadow.n["failed"],
        verdicts=[
            schemas.VerdictChange(old=old, new=new, n=n)
            for (old, new), n in counted.verdicts.most_common()
        ],
        outliers=[
            schemas.OutlierChange(old=old, new=new, n=n)
            for (old, new), n in counted.outliers.most_common()
        ],
        outlier_old=_share(counted, sum(n for (old, _), n in counted.outliers.items() if old)),
        outlier_new=_share(counted, sum(n for (_, new), n in counted.outliers.items() if new)),
        same_first=_share(counted, counted.n_same_first),
        changed=_share(counted, counted.n_changed),
        reasons=[
            schemas.ReasonCount(reason=reason, n=n) for reason, n in counted.reasons.most_common()
        ],
        probability_change=schemas.ProbabilityChange(
            n=counted.n_probabilities,
            mean=counted.probability_change,
            interval=counted.probability_interval(),
        ),
        recent=[
            schemas.ChangedAnswer(
                query_id=one.query_id,
                at=_moment(one.at),
                reason=one.reason,
                old=_said(one.old),
                new=_said(one.new),
                image_url=image_url(bundle, cases.get(one.query_id)),
            )
            for one in recent
        ],
    )


def _share(counted: ComparedAnswers, n: int) -> schemas.CountedShare:
    share = n / counted.n if counted.n else None
    interval = (0.0, 1.0) if share is None else exact_interval(share, counted.n, CONFIDENCE)
    return schemas.CountedShare(n=n, share=share, interval=interval)


def _said(said: Said) -> schemas.SaidAnswer:
    return schemas.SaidAnswer(
        verdict=said.verdict,
        item_id=said.item_id,
        name=said.name,
        match_probability=said.probability,
        outlier=said.outlier,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
