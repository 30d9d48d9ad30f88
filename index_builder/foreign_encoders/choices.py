"""Options of foreign encoders, and the input of a network; this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from model_store.images import Preprocessing


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


Channels = tuple[float, float, float]
"""Three numbers: for red, green and blue."""

IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class InputFormat:
    """The steps from an upright RGB image to a network's input.

    Attributes
    ----------
    preprocessing : resizes and crops to the input size.
    mean, std : a pixel x becomes (x / 255 − mean) / std.
    """

    preprocessing: Preprocessing
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD

    def standardised(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return ``pixels`` (B, H, W, 3) as a network's input (B, 3, H, W)."""
        scaled = (pixels / 255 - np.array(self.mean)) / np.array(self.std)
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), dtype=np.float32)


def channels(values: object) -> Channels:
    """Return three numbers; a single number is repeated.

    Raises
    ------
    ValueError : ``values`` is neither.
    """
    if isinstance(values, int | float):
        return (float(values),) * 3
    if isinstance(values, list | tuple) and len(values) == 3:
        red, green, blue = map(float, values)
        return red, green, blue
    raise ValueError(f"{values!r} is neither a number nor three numbers (red, green, blue)")
