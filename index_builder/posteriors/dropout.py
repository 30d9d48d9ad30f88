"""Dropout that stays on: the moments of what a last layer says with parts of it missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

DROPOUT_FORMAT = "dropout-posterior/1"
_TENSORS = ("weight", "bias", "share", "masks")

_SHORTEST = 1e-12
"""The length of an embedding below which it has no direction."""


@dataclass(frozen=True, slots=True)
class DropoutPosterior:
    """Monte Carlo dropout (Gal 2016) with the last layer's dropout averaged in closed form.

    With a share p of the features dropped and the rest scaled up, the embedding h = W φ + b has,
    over infinitely many passes, mean h and covariance C = p / (1 − p) W diag(φ∘φ) Wᵀ, exactly. Much
    of C lies along h, since dropping features mostly shortens it, and is gone once the embedding is
    normalised, as each pass of Warburg et al. 2023 is. So what is kept is the covariance of the
    direction u = h / ‖h‖, to first order in C, P C P / ‖h‖² with P = I − u uᵀ, and of that the
    diagonal.

    Dropout deeper in the network needs passes. Theirs are `masks`, fixed, so that the same image
    gives the same answer, and combined by the law of total variance: the variance of the passes'
    directions, plus the mean of their variances.

    Attributes
    ----------
    weight : (D, F)
    bias : (D,)
    share : (), p in [0, 1), of the features.
    masks : (T, ...) bool, of the activations within the trunk; T = 0 where nothing is dropped.
    """

    weight: Tensor
    bias: Tensor
    share: Tensor
    masks: Tensor

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean, of unit length, and variance, (B, D) each, of ``features`` (B, F): one pass."""
        embedding = torch.addmm(self.bias, features, self.weight.T)
        length = embedding.norm(dim=1, keepdim=True).clamp_min(_SHORTEST)
        unit = embedding / length
        spread = self.share / (1 - self.share) * (features / length).square()
        along = unit @ self.weight
        variance = (
            spread @ self.weight.square().T
            - 2 * unit * ((spread * along) @ self.weight.T)
            + unit.square() * (spread * along.square()).sum(1, keepdim=True)
        )
        return unit, variance.clamp_min(0)

    def combine(self, passes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and variance, (B, D) each, of T passes' features (B, F)."""
        moments = [self.predict(features) for features in passes]
        means = torch.stack([mean for mean, _ in moments])
        mean = means.mean(0)
        within = torch.stack([variance for _, variance in moments]).mean(0)
        return mean, (means - mean).square().mean(0) + within

    def save(self, path: Path) -> None:
        """Write the four tensors as safetensors."""
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        save_file(tensors, path, metadata={"format": DROPOUT_FORMAT})
