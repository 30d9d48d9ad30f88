"""Answers about bundles: the served bundle, its encoder, and other bundles."""

from __future__ import annotations

from collections.abc import Sequence

from model_store.bundles.bundle import Bundle
from model_store.bundles.history import BundleSummary
from service import schemas, serializers
from service.serving.current_bundle import Switched
from service.serving.lease import Lease


def bundle_state(lease: Lease) -> schemas.BundleState:
    """Describe the served bundle, and whether its calibration is valid."""
    bundle = lease.bundle
    calibration = bundle.retriever.calibration
    return serializers.bundle_state(bundle.manifest.id, calibration, lease.stale, lease.drift)


def bundle_list(
    serving: str, history: Sequence[BundleSummary], refused: str | None
) -> schemas.BundleList:
    """Describe the bundles of a gallery, of which it serves the bundle with the id ``serving``."""
    return schemas.BundleList(
        serving=serving,
        bundles=[
            schemas.BundleRecord.model_validate({**one.as_json(), "reason": one.reason})
            for one in history
        ],
        refused=refused,
    )


def activation(gallery: str, switched: Switched) -> schemas.Activation:
    """Describe the outcome of an activation."""
    return schemas.Activation(
        gallery=gallery,
        bundle_id=switched.bundle_id,
        previous_id=switched.previous_id,
        persisted=switched.persisted,
    )


def encoder_state(bundle: Bundle) -> schemas.EncoderState:
    """Describe the encoder of a bundle."""
    encoder = bundle.retriever.encoder
    return schemas.EncoderState(
        fingerprint=encoder.fingerprint,
        provider=encoder.provider,
        dim=encoder.dim,
        posterior=encoder.metadata.posterior,
    )
