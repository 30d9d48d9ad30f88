"""Encoders: a trunk that computes features, and the linear last layer that embeds them."""

from index_builder.networks.encoder import MetricEncoder, build_encoder

__all__ = ["MetricEncoder", "build_encoder"]
