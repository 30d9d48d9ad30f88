"""Answers about bundles: the served bundle, its encoder, and other bundles."""

from __future__ import annotations

from model_store.bundles.bundle import Bundle
from service import schemas, serializers
from service.serving.current_bundle import Switched
from service.serving.lease import Lease
from service.serving.registry import Galleries


def bundle_state(lease: Lease) -> schemas.BundleState:
    """Describe the served bundle, and whether its calibration is valid."""
    bundle = lease.bundle
    calibration = bundle.retriever.calibration
    return serializers.bundle_state(bundle.manifest.id, calibration, lease.stale, lease.drift)


def bundle_list(bundle: Bundle, galleries: Galleries) -> schemas.BundleList:
    """The bundles of a gallery."""
    return schemas.BundleList(
        serving=bundle.manifest.id,
        bundles=galleries.bundles(bundle),
        refused=galleries.refused.get(bundle.name),
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
