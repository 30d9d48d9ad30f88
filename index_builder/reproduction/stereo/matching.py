"""Matching: the cost volume, the most similar disparity (the winner), and its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TOLERANCE = 3
"""A disparity is correct if its error is at most this number of pixels (KITTI's rule)."""

TEMPERATURES = np.logspace(-3, 0, 31)
"""Candidate temperatures of the softmax over disparities."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Disparities:
    """The disparity of each pixel of an image, with its uncertainty.

    Attributes
    ----------
    winner : (H, W) int64, disparity in pixels.
    confidence : (H, W), probability that the true disparity is within `TOLERANCE` of the winner.
    std : (H, W), standard deviation of the disparity in pixels.
    """

    winner: NDArray[np.int64]
    confidence: Floats
    std: Floats


def cost_volume(left: Tensor, right: Tensor, most: int) -> Tensor:
    """Return the similarity of left pixel (i, j) and right pixel (i, j − d): (most + 1, H, W).

    The similarity is −∞ if column j − d is outside the image.

    Parameters
    ----------
    left, right : (F, H, W), unit vectors.
    most : maximum disparity in pixels.
    """
    _, height, width = left.shape
    volume = left.new_full((most + 1, height, width), -torch.inf)
    for d in range(min(most, width - 1) + 1):
        volume[d, :, d:] = (left[:, :, d:] * right[:, :, : width - d]).sum(0)
    return volume


def matched(volume: Tensor, temperature: float) -> Disparities:
    """Choose the disparity with the highest similarity for each pixel, and compute its uncertainty.

    The uncertainty depends on the similarities of all disparities. The probability of a disparity
    is p(d) ∝ exp(s_d / T): a softmax of the similarities over all disparities.

    Parameters
    ----------
    volume : the result of `cost_volume`.
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
    """Return the maximum-likelihood temperature for known disparities.

    Parameters
    ----------
    similarities : (most + 1, n), columns of `cost_volume` for n pixels. The images of these pixels
        were not used for training.
    disparities : (n,), true disparities of these pixels.
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
    """Return a baseline without training: the patch of each pixel as a unit vector, (F, H, W).

    The inner product of two such vectors is a normalised cross-correlation.

    Parameters
    ----------
    image : (H, W, 3).
    patch : height and width of a patch in pixels; odd.
    """
    grey = torch.from_numpy(image).float().mean(2)[None, None]
    padded = torch.nn.functional.pad(grey, (patch // 2,) * 4, mode="reflect")
    patches = torch.nn.functional.unfold(padded, patch)[0].reshape(patch**2, *image.shape[:2])
    return torch.nn.functional.normalize(patches - patches.mean(0), dim=0)
