"""Encoders: a trunk that computes features, and the linear last layer that embeds them.

::

    build                encoders by configuration
    encoder              trunk and linear last layer
    trunk                the interface of trunks
    small_cnn            the papers' trunk for grey images
    colour_cnn           the papers' trunk for CIFAR-10
    torchvision_trunk    a backbone of torchvision
    graph_trunk          an ONNX graph as a trunk
    pooling              pooling of a feature map to one vector
    dropout              dropout with masks from a generator
    initialisation       reproducible initial weights
    weights              pretrained weights
    features             features of many images
    feature_blocks       the type of features in blocks
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
