"""The choices of a user of a foreign encoder, without torch."""

from __future__ import annotations

from enum import StrEnum


class Door(StrEnum):
    """The kinds of encoders that are brought, as options call them."""

    timm = "timm"
    open_clip = "open_clip"
    hf = "hf"
    torchvision = "torchvision"
    torch = "torch"
    onnx = "onnx"


class Pooling(StrEnum):
    """The way from a network's last tokens, or from its feature map, to one vector."""

    default = "default"
    class_token = "class_token"  # noqa: S105 - not a password
    mean = "mean"
    gem = "gem"


class Precision(StrEnum):
    """The numbers that an exported encoder computes with."""

    float32 = "float32"
    float16 = "float16"
    int8_dynamic = "int8_dynamic"
    int8_static = "int8_static"


GEM_EXPONENT = 3.0
"""The exponent of the generalised mean that Radenović et al. 2019 begin with."""

GEM_FLOOR = 1e-6
"""The value that smaller and negative features count as."""
