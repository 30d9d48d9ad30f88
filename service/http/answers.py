"""Answers, and parts of answers, that several modules of routes give."""

from __future__ import annotations

import re
from urllib.parse import quote

from model_store.bundles.bundle import Bundle
from model_store.gallery import Item
from model_store.messages import message
from service import schemas, serializers
from service.access.hosts import root_path
from service.http.cursors import SearchCursor, write
from service.serializers import PictureUrls
from service.serving.lease import Lease
from service.serving.queries import SearchResult

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
    answer, end = found.answer, len(found.answer.matches)
    lease = lease.for_kind(answer.predictive.kind)
    bundle, retriever, entry = lease.bundle, lease.bundle.retriever, lease.bundle.entry
    reason = None
    if entry is not None and retriever.calibration is None:
        n_items = retriever.gallery.n_items
        reason = message("gallery_not_calibrated", n_items=n_items, gallery=entry.id)
    refused = serializers.is_refused(answer, options.on_uncertain)
    cursor = None
    if not refused and end < answer.n_listed:
        next_results = SearchCursor(
            bundle=bundle.manifest.id,
            version=bundle.version,
            query_id=found.query_id,
            start=end,
            options=options.model_copy(
                update={"expected_absent": answer.decision.absent_share, "order": answer.order}
            ),
            share_origin=found.share_origin,
        )
        cursor = write(next_results, lease.engine.secret)
    return serializers.search_answer(
        answer,
        retriever,
        bundle_state(lease),
        gallery=bundle.name,
        request_id=request_id,
        query_id=found.query_id,
        image=found.image,
        text=found.text,
        share_origin=found.share_origin,
        adopted_at=lease.engine.operator.adopted_at,
        urls=picture_urls(bundle),
        seconds=found.seconds,
        refused=refused,
        reason=reason,
        cache=found.cache,
        skipped=skipped,
        gone=found.gone,
        next_cursor=cursor,
        audit=found.audit and not skipped,
    )
