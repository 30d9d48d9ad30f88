"""Whether queries are answered."""

from __future__ import annotations

import time

from service import schemas
from service.galleries import Galleries


def ready(galleries: Galleries, cache: str) -> schemas.Ready:
    """The galleries, and when each last proved that it answers."""
    now = time.monotonic()
    return schemas.Ready(
        galleries=[
            schemas.ReadyGallery(
                name=engine.bundle.name,
                bundle_id=engine.bundle.manifest.id,
                encoder_fingerprint=engine.bundle.retriever.encoder.fingerprint,
                provider=engine.bundle.retriever.encoder.provider,
                batch_size=engine.batch_size,
                canary_ms=round(1000 * engine.canary_s, 3),
                canary_age_s=round(now - engine.canary_at, 3),
            )
            for engine in galleries.engines()
        ],
        cache=cache,
    )
