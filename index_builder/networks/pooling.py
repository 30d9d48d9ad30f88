"""Pooling of a feature map to one vector for each image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_FLOOR = 1e-6
"""Minimum value of an activation; the gradient of a fractional power is not finite at zero."""


class AveragePooling(nn.Module):
    """Average a feature map over height and width: (B, C, H, W) to (B, C)."""

    def forward(self, feature_map: Tensor) -> Tensor:
        """Pool ``feature_map``."""
        return feature_map.mean(dim=(2, 3))


class GeneralisedMeanPooling(nn.Module):
    """Generalised mean of a feature map over height and width: (mean xᵖ)^(1/p).

    Maps x ≥ 0 of shape (B, C, H, W) to (B, C). This is GeM of Radenović et al. 2019, Eq. 3, with
    one learned exponent p. As in Warburg et al. 2023, G.2, the exponent starts at 3. For p = 1 the
    result is the average; for p → ∞ the result approaches the maximum.
    """

    def __init__(self, exponent: float = 3.0) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(exponent))

    def forward(self, feature_map: Tensor) -> Tensor:
        """Pool ``feature_map``; negative values are treated as zero."""
        powers = feature_map.clamp_min(_FLOOR).pow(self.exponent)
        return powers.mean(dim=(2, 3)).pow(1 / self.exponent)
