"""Monte Carlo dropout: mean and variance of embeddings if dropout is used after training."""

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
"""Minimum norm of an embedding; it prevents division by zero."""


@dataclass(frozen=True, slots=True)
class DropoutPosterior:
    """Monte Carlo dropout (Gal 2016); the dropout of the last layer is averaged in closed form.

    Each pass drops a share p of the features and scales up the rest. Over infinitely many passes,
    the embedding has exactly the mean h = W φ + b and the covariance C = p / (1 − p) W diag(φ∘φ)
    Wᵀ. Warburg et al. 2023 normalise the embedding in each pass, which removes the part of C along
    h. The variance is therefore the diagonal of the covariance of the direction u = h / ‖h‖. To
    first order in C, this covariance is P C P / ‖h‖² with P = I − u uᵀ.

    Dropout inside the trunk needs several passes, each with one of the `masks`. The masks are
    fixed, so that an image always gets the same embedding. The law of total variance combines the
    passes: the variance of the passes' directions plus the mean of the passes' variances.

    Attributes
    ----------
    weight : (D, F)
    bias : (D,)
    share : (), p in [0, 1), the dropped share of the features.
    masks : (T, ...) bool, for activations in the trunk; T = 0 if the trunk has no dropout.
    """

    weight: Tensor
    bias: Tensor
    share: Tensor
    masks: Tensor

    def predict(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and variance of the embedding, (B, D) each, for one pass.

        The mean has unit length. ``features`` (B, F) come from this pass.
        """
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
        """Mean and variance of the embedding, (B, D) each, from the features (B, F) of T passes."""
        moments = [self.predict(features) for features in passes]
        means = torch.stack([mean for mean, _ in moments])
        mean = means.mean(0)
        within = torch.stack([variance for _, variance in moments]).mean(0)
        return mean, (means - mean).square().mean(0) + within

    def save(self, path: Path) -> None:
        """Write the four tensors as safetensors."""
        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        save_file(tensors, path, metadata={"format": DROPOUT_FORMAT})
