"""Cost volume, winner takes all, and how sure the winner is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOLERANCE = 3
"""Pixels that a disparity may be off, and counts as right: KITTI's rule."""

TEMPERATURES = np.logspace(-3, 0, 31)
"""Temperatures of the softmax over disparities that validation tries."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Disparities:
    """Disparities of an image's pixels, and what is known of their uncertainty.

    Attributes
    ----------
    winner : (H, W) int64, pixels.
    confidence : (H, W), the probability that the true disparity is within `TOLERANCE` of it.
    std : (H, W), the standard deviation of the disparity, pixels.
    """

    winner: NDArray[np.int64]
    confidence: Floats
    std: Floats


def cost_volume(left: Tensor, right: Tensor, most: int) -> Tensor:
    """Similarity of each left pixel (i, j) with the right one (i, j − d): (most + 1, H, W).

    Minus infinity where j − d lies outside of the image.

    Parameters
    ----------
    left, right : (F, H, W), unit vectors.
    most : largest disparity, pixels.
    """
    _, height, width = left.shape
    volume = left.new_full((most + 1, height, width), -torch.inf)
    for d in range(min(most, width - 1) + 1):
        volume[d, :, d:] = (left[:, :, d:] * right[:, :, : width - d]).sum(0)
    return volume


def matched(volume: Tensor, temperature: float) -> Disparities:
    """Choose the most similar disparity, with an uncertainty from all other similarities.

    The probability of a disparity is p(d) ∝ exp(s_d / T): the distribution over the right image's
    pixels that a similarity at a temperature stands for.

    Parameters
    ----------
    volume : of `cost_volume`.
    temperature : T, see `fitted_temperature`.
    """
    winner = volume.argmax(0)
    probabilities = (volume.double() / temperature).softmax(0)
    disparities = torch.arange(len(volume), dtype=torch.float64)[:, None, None]
    mean = (probabilities * disparities).sum(0)
    variance = (probabilities * (disparities - mean).square()).sum(0)
    within = (disparities - winner).abs() <= TOLERANCE
    confidence = (probabilities * within).sum(0)
    return Disparities(winner.numpy(), confidence.numpy(), variance.sqrt().numpy())


def fitted_temperature(similarities: Tensor, disparities: NDArray[np.float32]) -> float:
    """Return the temperature at which known disparities are likeliest.

    Parameters
    ----------
    similarities : (most + 1, n), of pixels of images that trained nothing; see `cost_volume`.
    disparities : (n,), of the same.
    """
    values = similarities.double()
    wanted = torch.from_numpy(disparities).round().long().clamp(0, len(values) - 1)[None]
    seen = values.gather(0, wanted)[0].isfinite()
    values, wanted = values[:, seen], wanted[:, seen]
    likelihoods = [
        float((values / t).log_softmax(0).gather(0, wanted).mean()) for t in TEMPERATURES
    ]
    return float(TEMPERATURES[int(np.argmax(likelihoods))])


def patch_correlation(image: NDArray[np.uint8], patch: int) -> Tensor:
    """Return the baseline that nothing is learned for: each pixel's patch, (F, H, W) unit vectors.

    Their products are normalised cross-correlations.

    Parameters
    ----------
    image : (H, W, 3).
    patch : height and width, pixels; odd.
    """
    grey = torch.from_numpy(image).float().mean(2)[None, None]
    padded = torch.nn.functional.pad(grey, (patch // 2,) * 4, mode="reflect")
    patches = torch.nn.functional.unfold(padded, patch)[0].reshape(patch**2, *image.shape[:2])
    return torch.nn.functional.normalize(patches - patches.mean(0), dim=0)
