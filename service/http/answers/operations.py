"""Answers about readiness."""

from __future__ import annotations

import time
from collections.abc import Sequence

from model_store.encoder.placement import Placement
from service import schemas
from service.serving.registry import Galleries


def ready(
    galleries: Galleries, cache: str, sandbox: Sequence[str], n_processes: int
) -> schemas.Ready:
    """Describe each gallery in the setting `bundle`, with the age of its last canary answer."""
    now = time.monotonic()
    return schemas.Ready(
        galleries=[
            schemas.ReadyGallery(
                name=engine.bundle.name,
                bundle_id=engine.bundle.manifest.id,
                encoder_fingerprint=engine.bundle.retriever.encoder.fingerprint,
                provider=engine.bundle.retriever.encoder.provider,
                placement=_placement(engine.bundle.retriever.encoder.placement),
                batch_size=engine.batch_size,
                canary_ms=round(1000 * engine.canary_s, 3),
                canary_age_s=round(now - engine.canary_at, 3),
            )
            for engine in galleries.fixed()
        ],
        cache=cache,
        decoder_sandbox=list(sandbox),
        processes=n_processes,
    )


def _placement(placement: Placement | None) -> dict[str, schemas.ProviderShare] | None:
    if placement is None:
        return None
    return {
        provider: schemas.ProviderShare(nodes=ran.nodes, share=round(ran.share, 4))
        for provider, ran in placement.items()
    }
