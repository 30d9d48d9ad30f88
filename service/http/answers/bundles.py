"""The served bundle and its encoder."""

from __future__ import annotations

from model_store.bundles.bundle import Bundle
from service import schemas, serializers
from service.serving.lease import Lease


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
