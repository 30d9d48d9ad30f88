"""Encoders: a trunk that computes features, and the linear last layer that embeds them."""

from index_builder.networks.encoder import (
    MetricEncoder,
    build_encoder,
    load_encoder,
    load_pretrained,
)
from index_builder.networks.weights import save_checkpoint
from index_builder.networks.whitening import learned_whitening

__all__ = [
    "MetricEncoder",
    "build_encoder",
    "learned_whitening",
    "load_encoder",
    "load_pretrained",
    "save_checkpoint",
]
