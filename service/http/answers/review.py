"""Answers of the review queue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from model_store.bundles.bundle import Bundle
from model_store.feedback import Case, CaseReason, CaseState, Leased
from service import schemas
from service.http.answers.items import gallery_url, picture_urls
from service.serving.reviewing import ReviewTerms


def review_case(bundle: Bundle, case: Case) -> schemas.ReviewCase:
    """Describe a review case. Decisions are omitted, so that reviewers decide independently."""
    urls = picture_urls(bundle)
    return schemas.ReviewCase(
        number=case.number,
        query_id=case.query_id,
        reason=case.reason,
        drawn=case.drawn,
        draw_probability=case.draw_probability,
        state="open" if case.settled_at is None else "settled",
        verdict=case.verdict,
        found=[
            schemas.FoundItem(
                id=item.item_id,
                label=item.label,
                match_probability=item.match_probability,
                thumbnail_url=urls(item.item_id)[0],
            )
            for item in case.found
        ],
        no_match_probability=case.no_match_probability,
        image_url=image_url(bundle, case),
        reviewers=case.wanted,
        bundle=case.bundle,
        kept_at=datetime.fromtimestamp(case.kept_at, UTC),
        settled_at=(
            None if case.settled_at is None else datetime.fromtimestamp(case.settled_at, UTC)
        ),
    )


def image_url(bundle: Bundle, case: Case | None) -> str | None:
    """Return the URL path of the image of a review case; None if no image is stored."""
    if case is None or case.media_type is None:
        return None
    return f"{gallery_url(bundle)}/review/{case.query_id}/image"


def case_list(bundle: Bundle, found: Sequence[Case], limit: int) -> schemas.CaseList:
    """Describe the first ``limit`` review cases in ``found``; the rest is on the next page."""
    shown = found[:limit]
    return schemas.CaseList(
        cases=[review_case(bundle, case) for case in shown],
        next_after=shown[-1].number if len(found) > limit else None,
    )


def leases(bundle: Bundle, leased: Sequence[Leased]) -> schemas.Leases:
    """Describe the review cases that a reviewer has leased."""
    return schemas.Leases(
        leases=[
            schemas.LeasedCase(
                case=review_case(bundle, one.case), until=datetime.fromtimestamp(one.until, UTC)
            )
            for one in leased
        ]
    )


def review_summary(
    counts: dict[tuple[CaseReason, CaseState], int],
    terms: ReviewTerms,
    random_share: float,
    retention_s: int,
) -> schemas.ReviewSummary:
    """Describe the review queue of a gallery."""
    return schemas.ReviewSummary(
        counts=[
            schemas.ReviewCount(reason=reason, state=state, n=n)
            for (reason, state), n in sorted(counts.items())
        ],
        reasons=list(terms.reasons),
        image=terms.image,
        random_share=random_share if "random" in terms.reasons else 0.0,
        retention_s=retention_s,
        reviewers=terms.reviewers,
    )
