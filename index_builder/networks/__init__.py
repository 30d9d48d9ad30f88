"""Encoders: a trunk that computes features, and the linear last layer that embeds them.

::

    encoder              trunk and linear last layer; encoders by configuration; features of images
    trunk                the interface of trunks, and the trunks that can be trained
    weights              pretrained weights
"""

from index_builder.networks.encoder import (
    MetricEncoder,
    build_encoder,
    load_encoder,
    load_pretrained,
)
from index_builder.networks.weights import save_checkpoint

__all__ = [
    "MetricEncoder",
    "build_encoder",
    "load_encoder",
    "load_pretrained",
    "save_checkpoint",
]
