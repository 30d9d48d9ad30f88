"""Answers, and parts of answers, that several modules of routes give."""

from __future__ import annotations

import re
from urllib.parse import quote

from model_store.bundles.bundle import Bundle
from model_store.decision import Assessment, Decision
from model_store.gallery import Item
from model_store.messages import Message, message
from service import schemas, serializers
from service.access.hosts import root_path
from service.http.cursors import SearchCursor, write
from service.observability.logs import SearchRecord, current_record
from service.observability.metrics import Telemetry, counted_as
from service.serializers import PictureUrls
from service.serving.lease import Lease
from service.serving.queries import (
    Assessed,
    DecidedList,
    Embedded,
    SearchResult,
)

_PLAIN = re.compile(r"[\w.~/-]*", re.ASCII)


def bundle_state(lease: Lease) -> schemas.BundleState:
    """Describe the served bundle, and whether its calibration is valid."""
    bundle = lease.bundle
    calibration = bundle.retriever.calibration
    return serializers.bundle_state(bundle.manifest.id, calibration, lease.stale, lease.drift)


def encoder_state(bundle: Bundle) -> schemas.EncoderState:
    """Describe the encoder of a bundle."""
    encoder = bundle.retriever.encoder
    return schemas.EncoderState(
        fingerprint=encoder.fingerprint,
        provider=encoder.provider,
        dim=encoder.dim,
        posterior=encoder.metadata.posterior,
    )


def item_detail(item: Item, urls: PictureUrls) -> schemas.ItemDetail:
    """One item; ``urls`` are the `picture_urls` of its bundle."""
    thumbnail, preview = urls(item.id)
    return schemas.ItemDetail(
        id=item.id,
        label=item.label,
        metadata=dict(item.metadata),
        thumbnail_url=thumbnail,
        preview_url=preview,
    )


def gallery_url(bundle: Bundle) -> str:
    """Return the URL path of a gallery, with the path prefix of the client's proxy."""
    return f"{root_path.get()}/v1/galleries/{_quoted(bundle.name)}"


def picture_urls(bundle: Bundle) -> PictureUrls:
    """Return a function that maps an item's id to the URL paths of its thumbnail and preview.

    The thumbnail is None in a gallery of vectors, the preview in a gallery without previews.
    """
    if not bundle.retriever.encoder.metadata.takes_images:
        return lambda _: (None, None)
    items = f"{gallery_url(bundle)}/items/"
    has_previews = bundle.retriever.gallery.preview_side is not None

    def urls(item_id: str) -> tuple[str, str | None]:
        thumbnail = f"{items}{_quoted(item_id)}/thumbnail"
        return thumbnail, f"{thumbnail}?size=preview" if has_previews else None

    return urls


def _quoted(text: str) -> str:
    """Percent-encode an id; call `quote`, which is slow, only for an id with special characters."""
    return text if _PLAIN.fullmatch(text) else quote(text)


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
    cursor = None
    if not refused and end < answer.n_listed:
        next_results = SearchCursor(
            bundle=bundle.manifest.id,
            version=bundle.version,
            query_id=found.query_id,
            start=end,
            options=options.model_copy(
                update={"expected_absent": decision.absent_share, "order": answer.order}
            ),
            share_origin=found.share_origin,
        )
        cursor = write(next_results, lease.engine.secret)
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
        next_cursor=cursor,
        audit=found.audit and not skipped,
    )


def _not_yet_calibrated(lease: Lease) -> Message | None:
    """Return the reason of `not_calibrated` for a gallery created over HTTP, and the remedy."""
    entry = lease.bundle.entry
    if entry is None or lease.bundle.retriever.calibration is not None:
        return None
    n_items = lease.bundle.retriever.gallery.n_items
    return message("gallery_not_calibrated", n_items=n_items, gallery=entry.id)


def counted_answer(
    telemetry: Telemetry,
    lease: Lease,
    found: SearchResult,
    request_id: str,
    options: schemas.SearchFields,
) -> schemas.SearchAnswer:
    """Return the answer to one query, and add it to metrics, and to the request's log and trace."""
    answer = search_answer(lease, found, request_id, options)
    gallery = counted_as(lease.bundle)
    search = SearchRecord(
        verdict=answer.verdict,
        cache=answer.cache,
        uncertainty_percentile=answer.query.uncertainty.percentile,
        outlier_p_value=answer.query.ood.p_value,
        is_outlier=bool(answer.query.ood.flag),
        seconds=found.seconds,
        ended_ns=found.at_ns,
    )
    telemetry.search(gallery, search)
    if answer.audit:
        telemetry.audits.labels(gallery).inc()
    request = current_record()
    if request is not None:
        request.searches.append(search)
    return answer


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
