"""Wraps a foreign torch network in Vouch's encoder contract, and pools its features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from .choices import GEM_EXPONENT, GEM_FLOOR, InputFormat, Pooling
from .parity import Reference, TextSource


def pooled(found: Tensor, pooling: Pooling, n_prefix: int = 0) -> Tensor:
    """Pool tokens (B, N, C) or a feature map (B, C, H, W) to (B, C).

    Parameters
    ----------
    pooling : any kind except ``default``. The generalised mean raises small values to `GEM_FLOOR`.
    n_prefix : number of tokens before the first patch: class token and registers.

    Raises
    ------
    ValueError : there is no class token, or ``found`` is neither tokens nor a feature map.
    """
    if found.ndim not in {3, 4}:
        raise ValueError(f"the features have the shape {tuple(found.shape)}: nothing to pool")
    if pooling is Pooling.class_token:
        if found.ndim == 4 or n_prefix == 0:
            raise ValueError("the network has no class token")
        return found[:, 0]
    patches, over = (found[:, n_prefix:], [1]) if found.ndim == 3 else (found, [2, 3])
    if pooling is Pooling.mean:
        return patches.mean(over)
    return patches.clamp_min(GEM_FLOOR).pow(GEM_EXPONENT).mean(over).pow(1 / GEM_EXPONENT)


@dataclass(frozen=True)
class ForeignNetwork:
    """A network, and the reference pipeline of its library.

    Attributes
    ----------
    module : standardised images (B, 3, H, W) → features (B, F). If the network predicts its
        uncertainty, it returns three tensors: embedding mean, embedding variance and features.
    input_format : the preprocessing of images.
    reference : the library's pipeline, which the exported encoder is compared with. None if the
        network does not come from a library.
    origin : names and versions of model and library, for the card.
    text : function that opens the text tower; None without a text tower.
    """

    module: nn.Module
    input_format: InputFormat
    reference: Reference | None
    origin: Mapping[str, str]
    text: Callable[[], TextSource] | None = None


class ContractModule(nn.Module):
    """A foreign network with the input and the three outputs of Vouch's encoder contract.

    Parameters
    ----------
    network : see `ForeignNetwork.module`. If the network does not predict its uncertainty, the
        features are also the embedding mean, and the embedding variance is zero.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, input_format: InputFormat) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(input_format.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(input_format.std).view(3, 1, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return embedding mean, variance and features of ``images`` (B, H, W, 3) uint8."""
        scaled = images.permute(0, 3, 1, 2).to(torch.float32) / 255
        found = self.network((scaled - self.mean) / self.std)
        if isinstance(found, tuple):
            mean, variance, features = found
            return mean, variance, features
        return found, torch.zeros_like(found), found * 1.0  # the features need another name


def reference_of(
    transform: Callable[[Image.Image], Tensor], network: Callable[[Tensor], Any]
) -> Reference:
    """Return the pipeline that applies ``transform`` and then ``network``."""

    def vector(image: Image.Image) -> NDArray[np.float32]:
        with torch.inference_mode():
            found = network(transform(image)[None])
            first: Tensor = found[0] if isinstance(found, tuple) else found
            vector: NDArray[np.float32] = first[0].float().numpy()
        return vector

    return vector


def plain_transform(input_format: InputFormat) -> Callable[[Image.Image], Tensor]:
    """Return the preprocessing in NumPy, for a network that does not come from a library."""

    def transform(image: Image.Image) -> Tensor:
        pixels = input_format.preprocessing(np.asarray(image))
        return torch.from_numpy(input_format.standardised(pixels[None])[0])

    return transform


def first_line(error: Exception) -> str:
    """Return the first line of an error message, because libraries may write hundreds of lines."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
