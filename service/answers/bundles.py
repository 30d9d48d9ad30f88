"""Which bundle answers, and with which encoder."""

from __future__ import annotations

from model_store.retriever import Bundle
from service import schemas
from service.engine import SearchEngine


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


def encoder_state(bundle: Bundle) -> schemas.EncoderState:
    """Which encoder answers."""
    encoder = bundle.retriever.encoder
    return schemas.EncoderState(
        fingerprint=encoder.fingerprint,
        provider=encoder.provider,
        dim=encoder.dim,
        posterior=encoder.metadata.posterior,
    )
