"""Encoders: a trunk that computes features, and the linear last layer that embeds them.

::

    build                encoders by configuration
    encoder              trunk and linear last layer
    trunk                the interface of trunks; initial weights and dropout
    small_cnn            the paper's trunks for grey images and for CIFAR-10
    torchvision_trunk    a backbone of torchvision, and the pooling of its feature map
    graph_trunk          an ONNX graph as a trunk
    weights              pretrained weights
    features             features of many images
"""

from index_builder.networks.build import build_encoder, load_encoder, load_pretrained
from index_builder.networks.encoder import MetricEncoder
from index_builder.networks.weights import save_checkpoint

__all__ = [
    "MetricEncoder",
    "build_encoder",
    "load_encoder",
    "load_pretrained",
    "save_checkpoint",
]
