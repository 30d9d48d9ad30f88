"""Options of foreign encoders, and the input of their networks; this module does not import torch.

`read_preprocess_file` reads the preprocessing files of published encoders. The keys identify three
formats: ``preprocess_cfg.json`` of OpenCLIP and Immich, ``config.json`` of timm, and
``preprocessor_config.json`` of transformers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from model_store.errors import EncoderSourceError
from model_store.images import Preprocessing
from model_store.images.resize import Fit, Resample


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


OPEN_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPEN_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
"""OpenCLIP's default values, used if the keys are missing."""

_RESAMPLES: tuple[Resample, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Names of interpolations, in the order of their numbers in Pillow."""

_OPEN_CLIP_FITS: Mapping[str, Fit] = {"shortest": "cover", "longest": "pad", "squash": "stretch"}
_TIMM_FITS: Mapping[str, Fit] = {"center": "cover", "border": "pad", "squash": "stretch"}

_UNSUPPORTED = ("do_pad", "rescale_offset", "include_top", "do_thumbnail", "do_align_long_axis")
"""Steps of image processors in transformers that `Preprocessing` does not support."""


def read_preprocess_file(path: Path) -> InputFormat:
    """Read the preprocessing of an encoder.

    Raises
    ------
    EncoderSourceError : the format is unknown, or a step is not supported.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EncoderSourceError(f"{path} cannot be read as JSON: {error}.") from error
    try:
        return _of_any_kind(fields)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        found = sorted(fields) if isinstance(fields, dict) else type(fields).__name__
        raise EncoderSourceError(
            f"{path} is not a known preprocessing file ({error}). It holds {found}; wanted "
            "OpenCLIP's preprocess_cfg.json, timm's config.json, or preprocessor_config.json of "
            "transformers."
        ) from error


def _of_any_kind(fields: Mapping[str, Any]) -> InputFormat:
    if "pretrained_cfg" in fields:
        return from_timm(fields["pretrained_cfg"])
    if "input_size" in fields:
        return from_timm(fields)
    if "preprocess_cfg" in fields:
        size = fields["model_cfg"]["vision_cfg"]["image_size"]
        return from_open_clip({"size": size, **fields["preprocess_cfg"]})
    if "image_mean" in fields or "image_processor_type" in fields:
        return from_transformers(fields)
    return from_open_clip(fields)


def from_open_clip(fields: Mapping[str, Any]) -> InputFormat:
    """Read OpenCLIP's ``preprocess_cfg``, with the size of the image tower.

    Raises
    ------
    KeyError, TypeError, ValueError : the fields have another format.
    """
    height, width = _height_and_width(fields["size"])
    if fields.get("mode", "RGB") != "RGB":
        raise ValueError(f"the mode is {fields['mode']!r}, wanted RGB")
    grey = int(fields.get("fill_color", 0))
    # As in OpenCLIP, every value except bilinear means bicubic.
    bilinear = fields.get("interpolation") == "bilinear"
    mean, std = _standardisation(
        fields.get("mean") or OPEN_CLIP_MEAN, fields.get("std") or OPEN_CLIP_STD
    )
    return InputFormat(
        Preprocessing(
            height,
            width,
            _OPEN_CLIP_FITS[fields.get("resize_mode") or "shortest"],
            "bilinear" if bilinear else "bicubic",
            fill=f"#{grey:02x}{grey:02x}{grey:02x}",
        ),
        mean,
        std,
    )


def from_timm(fields: Mapping[str, Any]) -> InputFormat:
    """Read timm's ``pretrained_cfg``, or the result of `timm.data.resolve_model_data_config`.

    Raises
    ------
    KeyError, TypeError, ValueError : the fields have another format.
    """
    n_channels, height, width = fields["input_size"]
    if n_channels != 3:
        raise ValueError(f"the input has {n_channels} channels, wanted 3")
    crop_fraction = fields.get("crop_pct") or 0.875
    sides = {math.floor(height / crop_fraction), math.floor(width / crop_fraction)}
    mean, std = _standardisation(fields.get("mean", IMAGENET_MEAN), fields.get("std", IMAGENET_STD))
    resized = None if sides == {height} == {width} else _only(sides)
    return InputFormat(
        Preprocessing(
            height,
            width,
            _TIMM_FITS[fields.get("crop_mode") or "center"],
            _resample(fields.get("interpolation") or "bilinear"),
            resized_side=resized,
            fill="#" + "".join(f"{round(255 * one):02x}" for one in mean),
        ),
        mean,
        std,
    )


def from_transformers(fields: Mapping[str, Any]) -> InputFormat:
    """Read the configuration of an image processor of transformers.

    Raises
    ------
    KeyError, TypeError, ValueError : the fields have another format, or a step is not supported.
    """
    unknown = [name for name in _UNSUPPORTED if fields.get(name)]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is not supported")
    factor = fields.get("rescale_factor", 1 / 255) if fields.get("do_rescale", True) else 1.0
    scale = 255 * factor
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if fields.get("do_normalize", True):
        mean = channels(fields.get("image_mean", IMAGENET_MEAN))
        std = channels(fields.get("image_std", IMAGENET_STD))
    scaled = _standardisation([one / scale for one in mean], [one / scale for one in std])
    return InputFormat(_resized_by_transformers(fields), *scaled)


def _standardisation(mean: object, std: object) -> tuple[Channels, Channels]:
    """Return the mean and the standard deviation of pixel values between 0 and 1."""
    means, stds = channels(mean), channels(std)
    if not all(0 <= one <= 1 for one in means) or not all(0 < one <= 1 for one in stds):
        raise ValueError(
            f"the mean {mean} or the std {std} is not for pixel values between 0 and 1; divide by "
            "255 the values for pixels up to 255"
        )
    return means, stds


def _resized_by_transformers(fields: Mapping[str, Any]) -> Preprocessing:
    if not fields.get("do_resize", True):
        raise ValueError("do_resize is false, so images have no common size")
    resample = _RESAMPLES[int(fields.get("resample", 2))]
    size = fields["size"]
    if not isinstance(size, dict):  # one number, in old files
        cropped = bool(fields.get("do_center_crop"))
        size = {"shortest_edge": size} if cropped else {"height": size, "width": size}
    if size.get("height") is not None:
        if fields.get("do_center_crop"):
            raise ValueError("stretching and then cropping is not supported")
        return Preprocessing(int(size["height"]), int(size["width"]), "stretch", resample)
    shortest = int(size["shortest_edge"])
    if fields.get("crop_pct") is not None:  # ConvNeXt's
        if shortest >= 384:
            return Preprocessing(shortest, shortest, "stretch", resample)
        height = width = shortest
        shortest = int(shortest / fields["crop_pct"])
    elif fields.get("do_center_crop"):
        height, width = _height_and_width(fields["crop_size"])
    else:
        raise ValueError("images keep their shape, so they have no common size")
    return Preprocessing(
        height,
        width,
        "cover",
        resample,
        resized_side=None if height == width == shortest else shortest,
        crop_offset="down",
    )


def _height_and_width(size: object) -> tuple[int, int]:
    """Read a size: one number, two numbers, or the keys height and width."""
    if isinstance(size, Mapping):
        return int(size["height"]), int(size["width"])
    if isinstance(size, list | tuple):
        height, width = size
        return int(height), int(width)
    return int(cast("int", size)), int(cast("int", size))


def _resample(name: str) -> Resample:
    """Return timm's interpolation ``name``; for ``random``, return ``bilinear``."""
    known: dict[str, Resample] = {one: one for one in _RESAMPLES}
    return known["bilinear" if name == "random" else name]


def _only(sides: set[int]) -> int:
    if len(sides) != 1:
        raise ValueError(f"a crop from a rectangle of {sorted(sides)} pixels is not supported")
    return sides.pop()
