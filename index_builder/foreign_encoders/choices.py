"""Options of foreign encoders; this module does not import torch."""

from __future__ import annotations

from enum import StrEnum


class Door(StrEnum):
    """The sources of foreign encoders, named as on the command line."""

    timm = "timm"
    open_clip = "open_clip"
    hf = "hf"
    torchvision = "torchvision"
    torch = "torch"
    onnx = "onnx"


class Pooling(StrEnum):
    """How to pool the last tokens of a network, or its feature map, to one vector."""

    default = "default"
    class_token = "class_token"  # noqa: S105 - not a password
    mean = "mean"
    gem = "gem"


class Precision(StrEnum):
    """The number format of an exported encoder."""

    float32 = "float32"
    float16 = "float16"
    int8_dynamic = "int8_dynamic"
    int8_static = "int8_static"


GEM_EXPONENT = 3.0
"""The initial exponent of the generalised mean in Radenović et al. 2019."""

GEM_FLOOR = 1e-6
"""The minimum value of features in the generalised mean. Smaller features are raised to this
value."""
